"""Fault cells of callbacks outside jit under settings of JAX, and of results that no operand gives a place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import EVERY_KIND, planted
from .outside_jit import differs


@planted("jit", "call pure_callback io_callback", "H4 X2 X3", minimum_devices=2)
def results_without_a_place(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result outside jit is on a chosen device only if an operand is: otherwise it goes with arrays of any device."""
    last = bench.devices[-1]
    there = jax.device_put(np.ones(3, np.float32), last)
    anomalies: list[Anomaly] = []
    for what, operand, place in (
        ("an array", jnp.ones(3, np.float32), None),
        ("an array of NumPy", np.ones(3, np.float32), None),
        ("an array on the last device", there, last),
    ):
        result = bench.apply(callback, lambda given: np.asarray(given) + np.float32(1), operand)
        anomalies += differs(f"whether the result of {what} has a chosen device", result.committed, place is not None)
        anomalies += differs(f"the devices of its sum with another, of {what}", (result + there).devices(), {last})
    return anomalies + check_quiet_barrier(bench, "after results outside jit")


@planted("jit", "call pure_callback io_callback io_callback_ordered", "H3 H4 X2 X3", minimum_devices=2)
def results_without_elements(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result without elements is where its operand is. An io_callback of it is called, and a pure one is not."""
    last = bench.devices[-1]
    operand = jax.device_put(np.ones(3, np.float32), last)
    seen: list[float] = []

    def host(given: Any) -> Any:
        seen.append(float(np.asarray(given).sum()))
        return np.zeros((0, 2), np.float32)

    def apply(x: Any) -> Any:
        return bench.apply(callback, host, x, jax.ShapeDtypeStruct((0, 2), np.float32))

    anomalies: list[Anomaly] = []
    for where, run in (("outside jit", apply), ("in jit", jax.jit(apply))):
        seen.clear()
        result = jax.block_until_ready(run(operand))
        anomalies += check_quiet_barrier(bench, f"after a result without elements {where}")
        anomalies += differs(f"the device of a result without elements {where}", result.devices(), {last})
        anomalies += differs(f"the shape of it {where}", result.shape, (0, 2))
        wanted = [] if callback.function == "pure_callback" else [3.0]
        anomalies += differs(f"what its function saw {where}", seen, wanted)
    return anomalies


@planted("jit", EVERY_KIND, "H4 X2 X3 X4 B1 D1", functions="barrier_wait")
def under_a_transfer_guard(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Outside jit, a callback runs where the program forbids implicit transfers: it makes none."""
    operand = jnp.asarray(bench.operand)
    wanted = bench.expected(callback, bench.operand)

    def host(given: Any) -> Any:
        return np.asarray(given) + np.float32(1)

    def guarded() -> Any:
        with jax.transfer_guard("disallow"):
            result = bench.apply(callback, host, operand)
            jax.block_until_ready(result)
        return result

    # In-place callbacks need a program, which is compiled at the first of these.
    anomalies = check_value("without a guard", lambda: bench.apply(callback, host, operand), wanted)
    anomalies += check_value("under a guard", guarded, wanted)
    if callback.function in ("id_tap", "debug.callback"):
        anomalies += _numbers_under_a_guard(bench, callback)
    return anomalies + check_quiet_barrier(bench, "after a guard")


def _numbers_under_a_guard(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Numbers of Python and of NumPy are on no device: those that are shown need not go there."""
    seen: list[float] = []

    def show(given: Any) -> None:
        seen.extend(float(np.asarray(each).sum()) for each in jax.tree.leaves(given))

    numbers: tuple[Any, ...] = (2.0, 3, True, np.float32(4), np.arange(5, 7, dtype=np.int32)[1:], {"a": 7.0, "b": 8})
    anomalies: list[Anomaly] = []
    for given in numbers:
        with jax.transfer_guard("disallow"):
            error = error_of(lambda given=given: (bench.apply(callback, show, given), 0)[1])  # type: ignore[misc]
        if error is not None:
            anomalies.append(Anomaly("error", Stage.DISPATCH, f"under a guard {given!r} came to {summary(error)}"))
    anomalies += check_quiet_barrier(bench, "after numbers under a guard")
    return anomalies + differs("the numbers that were shown", sorted(seen), [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0])


@planted("jit", "id_tap call io_callback debug_callback", "H1 H3 X3 X4", functions="barrier_wait")
def nans_by_number(bench: Bench, callback: Callback) -> list[Anomaly]:
    """With `jax_debug_nans`, a NaN may be given to a callback, as Python's number and as an array."""
    seen: list[bool] = []

    def host(given: Any) -> Any:
        seen.append(bool(np.isnan(np.asarray(given))))
        return np.float32(1)

    def in_jit(given: Any) -> Any:
        return jax.jit(lambda: (bench.apply(callback, host, given, number), np.float32(1))[1])()

    number = jax.ShapeDtypeStruct((), np.float32)
    jax.config.update("jax_debug_nans", True)
    try:
        for given in (float("nan"), np.float32("nan")):
            bench.apply(callback, host, given, number)
            in_jit(given)
    finally:
        jax.config.update("jax_debug_nans", False)
    anomalies = check_quiet_barrier(bench, "after numbers that are none")
    return anomalies + differs("whether callbacks saw a NaN", seen, [True] * 4)


@planted("jit", "pure_callback call", "H15 X2", functions="barrier_wait", isolated=True)
def nans_after_a_failure(bench: Bench, callback: Callback) -> list[Anomaly]:
    """After calls that failed, `jax_debug_nans` works in their thread as before."""

    def host(given: Any) -> Any:
        if float(given) < 0:
            raise ValueError(PLANTED)
        return given

    program = jax.jit(lambda x: bench.apply(callback, host, x))
    raised = [error_of(lambda n=n: program(np.float32(n))) is not None for n in (1, 1, 2, -1, 1, -1, 1)]  # type: ignore[misc]
    error_of(bench.implementation.barrier)
    logarithm = jax.jit(lambda x: jnp.log(x) * 2)
    jax.config.update("jax_debug_nans", True)
    try:
        kinds = [type(error_of(lambda n=n: logarithm(np.float32(n)))) for n in (1, 1, -1)]  # type: ignore[misc]
    finally:
        jax.config.update("jax_debug_nans", False)
    anomalies = differs("which of seven calls failed", raised, [False, False, False, True, False, True, False])
    if not issubclass(kinds[-1], FloatingPointError) or kinds[:2] != [type(None)] * 2:
        anomalies.append(Anomaly("swallowed error", Stage.DISPATCH, f"logarithms of 1, 1 and -1 came to {kinds}"))
    return anomalies
