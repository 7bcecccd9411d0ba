"""Fault cells of donated arguments and of other memories: the runtime may reuse what a callback was given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from ..spec.jax_versions import shard_map
from .harness.bench import WIDTH, Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import EVERY_KIND, planted

RUNS = 3
LARGE = 1 << 18
"""This many float32 are 1 MiB: from this size on, a library may lend memory that it reuses."""


def _donating(bench: Bench, computation: Any) -> Any:
    """A compiled program that may write its results over its operand."""
    if bench.layout == "jit":
        return jax.jit(computation, donate_argnums=0)
    if bench.layout == "pjit":
        return jax.jit(computation, donate_argnums=0, in_shardings=bench.split, out_shardings=bench.split)
    rows = PartitionSpec("devices")
    return jax.jit(shard_map(computation, mesh=bench.mesh, in_specs=rows, out_specs=rows), donate_argnums=0)


@planted("jit", f"{EVERY_KIND} debug_callback_ordered", also="H11")
@planted("pjit shard_map", "id_tap call io_callback", also="H11")
def donated(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program donates the operand that its callback keeps, and writes its own result over that memory."""
    anomalies: list[Anomaly] = []
    for width in (WIDTH, LARGE) if bench.layout == "jit" else (WIDTH,):
        anomalies += _check_donated(bench, callback, width)
    return anomalies + check_quiet_barrier(bench, "after donated operands")


def _check_donated(bench: Bench, callback: Callback, width: int) -> list[Anomaly]:
    kept: list[Any] = []

    def keep(operand: Any) -> Any:
        kept.append(np.asarray(operand))
        return np.asarray(operand) + np.float32(1)

    program = _donating(bench, lambda x: (bench.apply(callback, keep, x), x * -3))
    shape = (width,) if bench.layout == "jit" else (len(bench.devices), width)
    operands = [np.full(shape, 1 + run, np.float32) for run in range(RUNS)]
    sharding = None if bench.layout == "jit" else bench.split
    anomalies: list[Anomaly] = []
    for operand in operands:
        # Some arrays of NumPy share their memory with the device's, and cannot be donated.
        given = jax.device_put(operand, sharding) + jnp.float32(0)
        result, tripled = program(given)
        for what, found, wanted in (
            ("result of the callback", result, bench.expected(callback, operand)),
            ("result beside it", tripled, operand * -3),
        ):
            if not np.array_equal(found, wanted):
                witness = f"the {what} is {_short(found)}, expected {_short(wanted)}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
        if not given.is_deleted():
            anomalies.append(Anomaly("not donated", Stage.DISPATCH, "the operand is still there"))
    bench.implementation.barrier()
    if callback.runs is Runs.ONCE and len(kept) != RUNS * bench.callbacks_per_run:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{len(kept)} operands were kept in {RUNS} runs"))
    allowed = {float(operand.flat[0]) for operand in operands}
    numbers = {float(array.flat[0]) for array in kept}
    if callback.runs is Runs.ONCE and numbers != allowed:
        witness = f"the kept operands are of {sorted(numbers)} later, expected {sorted(allowed)}"
        anomalies.append(Anomaly("torn operand", Stage.CALLBACK, witness))
    for array in kept:
        if float(array.flat[0]) not in allowed or not (array == array.flat[0]).all():
            anomalies.append(Anomaly("torn operand", Stage.CALLBACK, f"a kept operand is {_short(array)} later"))
    return anomalies[:3]


@planted("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3")
def donated_again(bench: Bench, callback: Callback) -> list[Anomaly]:
    """JAX refuses a program whose operand was donated before; the next programs and barriers are as without that."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand).ravel()[0]))
        return np.asarray(operand) + np.float32(1)

    program = _donating(bench, lambda x: bench.apply(callback, host, x) + np.float32(0))
    anomalies: list[Anomaly] = []
    refused = 0
    for run in range(2 * RUNS):
        # Of one frame, at one instruction: the library may know a dispatch by these.
        given = jnp.float32(run) + jnp.zeros(WIDTH)
        for attempt in range(2):
            try:
                result = np.asarray(program(given))
            except (RuntimeError, ValueError) as error:
                refused += 1
                if not attempt or "delete" not in str(error):
                    witness = f"attempt {attempt} of run {run} failed: {summary(error)}"
                    anomalies.append(Anomaly("stale error", stage_of(error), witness))
            else:
                wanted = bench.expected(callback, np.full(WIDTH, run, np.float32))
                if attempt or not np.array_equal(result, wanted):
                    witness = f"attempt {attempt} of run {run} gave {result}, expected {wanted}"
                    anomalies.append(Anomaly("result", Stage.RESULT, witness))
        anomalies += check_quiet_barrier(bench, "after an operand that was donated twice")
    if seen != [float(run) for run in range(2 * RUNS)]:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"the callback saw {seen} in {2 * RUNS} runs"))
    if not refused:
        anomalies.append(Anomaly("not refused", Stage.DISPATCH, "JAX accepted an operand that was donated before"))
    return anomalies


@planted("jit", "id_tap call io_callback_ordered debug_callback_ordered", "H4", functions="barrier_wait")
def memory_kind_beside_jaxs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program with a memory kind may have an ordered callback of hostcb's and one of JAX's, in either order."""
    device = bench.devices[0]
    seen: list[str] = []

    def own(operand: Any) -> None:
        seen.append("JAX's")

    def host(operand: Any) -> Any:
        seen.append("hostcb's")
        return np.asarray(operand) + np.float32(1)

    anomalies: list[Anomaly] = []
    for kind in [memory.kind for memory in device.addressable_memories()]:
        there = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        for own_first in (True, False):

            def program(x: Any, own_first: bool = own_first) -> Any:
                if own_first:
                    io_callback(own, None, x, ordered=True)
                y = bench.apply(callback, host, x)
                if not own_first:
                    io_callback(own, None, y, ordered=True)
                return y

            seen.clear()
            compiled = jax.jit(program, out_shardings=there)
            wanted = bench.expected(callback, bench.operand)
            where = f"with a result in {kind}"
            anomalies += check_value(where, lambda run=compiled: run(jnp.asarray(bench.operand)), wanted)  # type: ignore[misc]
            anomalies += check_quiet_barrier(bench, where)
            jax.effects_barrier()
            if sorted(seen) != ["JAX's", "hostcb's"]:
                anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"{where} there ran {seen}"))
    return anomalies


@planted("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
@planted("pjit", "id_tap call pure_callback", also="H4")
def memory_kinds(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Operands and results in each of the device's memories, such as the host's."""
    anomalies: list[Anomaly] = []
    sharding: Any = (
        bench.split if bench.layout == "pjit" else jax.sharding.SingleDeviceSharding(next(iter(bench.devices)))
    )
    memories = [memory.kind for memory in bench.devices[0].addressable_memories()]
    for kind in memories:
        there = sharding.with_memory_kind(kind)
        seen: list[Any] = []

        def host(operand: Any, seen: list[Any] = seen) -> Any:
            seen.append(np.array(operand))
            return np.asarray(operand) + np.float32(1)

        def plain(x: Any, host: Any = host) -> Any:
            return bench.apply(callback, host, x)

        wanted = bench.expected(callback, bench.operand)
        for label, program, operand in (
            ("an operand", jax.jit(plain), jax.device_put(bench.operand, there)),
            ("a result", jax.jit(plain, in_shardings=sharding, out_shardings=there), bench.operand),
        ):
            seen.clear()
            where = f"{label} in {kind}"
            try:
                result = program(operand)
                found = np.asarray(result)
                bench.implementation.barrier()
            except Exception as error:
                anomalies.append(Anomaly("error", stage_of(error), f"{where}: {summary(error)}"))
                continue
            if not np.array_equal(found, wanted):
                anomalies.append(Anomaly("result", Stage.RESULT, f"{where}: {found.tolist()}, not {wanted.tolist()}"))
            if label == "a result" and result.sharding.memory_kind != kind:
                anomalies.append(Anomaly("result", Stage.RESULT, f"{where}: it is in {result.sharding.memory_kind}"))
            if not seen or any(not np.array_equal(each, bench.operand) for each in seen):
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{where}: the callback saw {seen}"))
    return anomalies


def _short(array: Any) -> str:
    return " ".join(repr(np.asarray(array)).split())[:120]
