"""Fault cells of callbacks that run JAX: on one device, on all by pmap or over a mesh, with inner callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_failed_barrier, check_quiet_barrier, check_value, error_of
from .harness.registry import EVERY_KIND, OF_JAX, ONE_OF_EACH, planted
from .traces import library

SIDE = 64
TAPS, RUNS, FEW_RUNS = 20, 10, 3


@planted("jit", EVERY_KIND)
def runs_jax_inside(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback makes arrays on a device and computes with them."""

    @jax.jit
    def inner(operand: Any) -> Any:
        square = jnp.full((SIDE, SIDE), operand.ravel()[0])
        return jnp.trace(square @ jnp.eye(SIDE)) / SIDE

    return _check_inside(bench, callback, lambda operand: inner(jnp.asarray(operand)))


@planted("jit", ONE_OF_EACH)
def runs_pmap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs a program on all devices, by pmap."""
    inner = jax.pmap(lambda x: x + 0, devices=bench.devices)
    count = len(bench.devices)
    return _check_inside(bench, callback, lambda operand: inner(np.full((count, 1), operand.ravel()[0]))[count - 1, 0])


@planted("jit", ONE_OF_EACH)
def runs_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs one program over a mesh of all devices, with a collective in it."""
    count = len(bench.devices)
    inner = jax.jit(lambda x: x.sum() / count, in_shardings=bench.split)
    return _check_inside(bench, callback, lambda operand: inner(np.full((count, 1), operand.ravel()[0])))


@planted("jit", OF_JAX)
def starts_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each callback runs a program that has a callback of the same kind."""
    seen: list[Any] = []

    def recording(operand: Any) -> Any:
        seen.append(np.asarray(operand))
        return np.asarray(operand) + np.float32(1)

    inner = jax.jit(lambda x: bench.apply(callback, recording, x))
    results: list[Any] = []

    def host(operand: Any) -> Any:
        results.append(np.asarray(inner(np.asarray(operand))))
        return results[-1]

    compiled = bench.applying(callback, host)
    wanted = bench.expected(callback, bench.operand)
    anomalies = check_value("the outer program", lambda: compiled(bench.operand), wanted)
    anomalies += check_quiet_barrier(bench, "after callbacks that started others")
    for what, arrays, each in (("operands", seen, bench.operand), ("results", results, wanted)):
        if not arrays or any(not np.array_equal(array, each) for array in arrays):
            witness = f"the inner program's {what} are {arrays}, expected {each}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "call", "H5")
def in_order_after_nesting(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that a callback has started keeps the order of its taps and calls when the user starts it later."""
    order: list[int] = []

    def called(operand: Any) -> Any:
        order.append(-1)
        return np.asarray(operand)

    def program(x: Any) -> Any:
        def tapped(step: Any, value: Any) -> Any:
            bench.implementation.tap(lambda step, _: order.append(int(step)), step)
            return value

        return bench.apply(callback, called, jax.lax.fori_loop(0, TAPS, tapped, x))

    compiled = jax.jit(program)
    due = [*range(TAPS), -1]
    compiled(bench.operand)
    bench.implementation.barrier()
    order.clear()
    outer = jax.jit(lambda x: bench.implementation.tap(lambda x, _: jax.block_until_ready(compiled(x)), x))
    outer(bench.operand)
    bench.implementation.barrier()
    anomalies = [] if order == due else [Anomaly("order", Stage.CALLBACK, f"inside a callback it came {order}")]
    order.clear()
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    anomalies += check_quiet_barrier(bench, "after programs that were nested before")
    if order != due * RUNS:
        anomalies.append(Anomaly("order", Stage.CALLBACK, f"later it came {order[: 2 * len(due)]}..., expected {due}"))
    return anomalies


@planted("jit", "call", "H15 X2")
def fails_inside_after_a_tap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that a callback has started taps and then fails, in its first run as well: each run has its own end."""

    def failing(operand: Any) -> Any:
        if float(operand) < 0:
            raise ValueError(PLANTED)
        return operand

    def program(x: Any) -> Any:
        return bench.apply(callback, failing, bench.implementation.tap(lambda value, transforms: None, x))

    inner = jax.jit(program)
    ends: list[Any] = []

    def host(operand: Any) -> Any:
        for number in (-1, 2, -3, 4):
            error = error_of(lambda number=number: ends.append(float(inner(np.float32(number)))))  # type: ignore[misc]
            if error is not None:
                ends.append(PLANTED in str(error))
        return operand

    compiled = jax.jit(lambda x: bench.apply(callback, host, x))
    anomalies: list[Anomaly] = []
    for _ in range(2):
        anomalies += check_value("the program around", lambda: compiled(np.float32(5)), np.float32(5))
    due = [True, 2.0, True, 4.0] * 2
    if ends != due:
        witness = f"runs in a callback ended with {ends}, expected {due}: their results, and True for their own errors"
        anomalies.append(Anomaly("swallowed error", Stage.RESULT, witness))
    return anomalies + check_failed_barrier(bench, PLANTED)


@planted("jit", "call", "H13 H15", minimum_devices=6, functions="barrier_wait", isolated=True, deadline=40.0)
def refused_three_levels_deep(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program on two devices is refused in a callback that is in one on one device, in a callback of one on two."""
    devices = bench.devices
    number = jax.ShapeDtypeStruct((), np.float32)
    third = jax.pmap(lambda x: bench.implementation.tap(lambda *_: None, x), devices=devices[2:4])

    def start_third(operand: Any) -> Any:
        jax.block_until_ready(third(np.ones(2, np.float32)))
        return operand

    second = jax.jit(lambda x: bench.apply(callback, start_third, x, number))

    def start_second(operand: Any) -> Any:
        return np.asarray(second(jax.device_put(operand, devices[5])))

    first = jax.pmap(lambda x: bench.apply(callback, start_second, x, number), devices=devices[:2])
    error = error_of(lambda: jax.block_until_ready(first(np.ones(2, np.float32))))
    error_of(bench.implementation.barrier)
    if error is None or "runs on several devices itself" not in str(error):
        return [Anomaly("not refused", Stage.DISPATCH, f"the program around came to {error!r}")]
    return check_quiet_barrier(bench, "after a program that was refused")


def _check_inside(bench: Bench, callback: Callback, inner: Callable[[Any], Any]) -> list[Anomaly]:
    """The host function runs a program that returns the first number of its operand."""
    # Compiled beforehand: compilation takes longer than the timeouts of this scenario.
    inner(bench.operand)
    found: list[tuple[float, float]] = []

    def host(operand: Any) -> Any:
        array = np.asarray(operand)
        found.append((float(array.ravel()[0]), float(inner(array))))
        return array + np.float32(1)

    compiled = bench.applying(callback, host)
    anomalies = check_value("the program", lambda: compiled(bench.operand), bench.expected(callback, bench.operand))
    anomalies += check_quiet_barrier(bench, "after callbacks that ran JAX")
    if len(found) < bench.callbacks_per_run:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{len(found)} callbacks ran"))
    for first, again in found:
        if first != again:
            witness = f"JAX inside a callback computed {again}, expected {first}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


# Compiled once: a new jitted function per callback would compile in every callback, which takes
# longer than any deadline.
_host_side_jax = jax.jit(lambda v: jnp.tanh(v) @ jnp.tanh(v).T)

SMALL_SIDE = 8


def _matrices(bench: Bench) -> Any:
    """One small matrix per device."""
    count = len(bench.devices)
    return np.arange(count * SMALL_SIDE * SMALL_SIDE, dtype=np.float32).reshape(count, SMALL_SIDE, SMALL_SIDE) / 100


def _first_matrices(bench: Bench) -> Any:
    """The first matrix in each callback's operand: the one of its device, or the first of all."""
    return _matrices(bench) if bench.layout == "pmap" else _matrices(bench)[:1]


@planted("pmap pjit", "call", "H9 H10", kind="runs_jax")
def call_runs_jax(bench: Bench, callback: Callback) -> list[Anomaly]:
    def host(operand: Any) -> Any:
        return np.asarray(_host_side_jax(operand.reshape(-1, SMALL_SIDE)[:SMALL_SIDE])).reshape(SMALL_SIDE, SMALL_SIDE)

    def through(x: Any) -> Any:
        wanted = jax.ShapeDtypeStruct((SMALL_SIDE, SMALL_SIDE), np.float32)
        return x + bench.implementation.call(host, x, wanted)

    matrices = _matrices(bench)
    wanted = matrices + np.stack([host(first) for first in _first_matrices(bench)])
    value = np.asarray(bench.compile(through)(matrices))
    if not np.allclose(value, wanted, rtol=1e-5):
        return [Anomaly("result", Stage.RESULT, "JAX inside a call computed something else")]
    return check_quiet_barrier(bench, "after calls that ran JAX")


@planted("pmap", "call", "H9", minimum_devices=2, deadline=10.0, isolated=True)
def runs_jax_on_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A call, for which a program on all devices waits, runs another program on all devices."""
    doubled = jax.pmap(lambda v: v * 2, devices=bench.devices)
    doubled(bench.operand)

    def host(operand: Any) -> Any:
        return np.asarray(doubled(bench.operand))[0] * 0 + operand

    value = np.asarray(bench.calling(host, shape=bench.callback_shape)(bench.operand))
    if not np.array_equal(value, bench.operand):
        return [Anomaly("result", Stage.RESULT, "a call that ran JAX on all devices returned something else")]
    return []


@planted("pmap", "call", "H9 H15", minimum_devices=2, isolated=True)
def starts_callbacks_on_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As above, with callbacks in the inner program: the implementation can detect this, and refuse."""
    inner = bench.compile(lambda v: bench.implementation.tap(lambda operand, transforms: None, v))
    inner(bench.operand)

    def host(operand: Any) -> Any:
        return np.asarray(inner(bench.operand))[0] * 0 + operand

    outer = bench.calling(host, shape=bench.callback_shape)
    error = error_of(lambda: outer(bench.operand))
    if error is None:
        return []
    if "several devices" not in str(error):
        return [Anomaly("error", Stage.RESULT, f"the refusal does not say why: {str(error)[-300:]}")]
    return check_failed_barrier(bench, "several devices")


@planted("pmap", "call", "H5 H9 H13", minimum_devices=2, isolated=True, deadline=40.0)
def taps_inside_on_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device's call starts a program with a tap on its own device, at each run: nothing waits for ever."""
    seen: list[float] = []
    inner = jax.jit(lambda v: bench.implementation.tap(lambda operand, _: seen.append(float(operand)), v))
    numbers = {device: jax.device_put(np.float32(place), device) for place, device in enumerate(bench.devices)}
    for number in numbers.values():
        inner(number)
    bench.implementation.barrier()

    def host(operand: Any, device: Any) -> Any:
        inner(numbers[device])
        return np.asarray(operand)

    def through(x: Any) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return library(bench).call(host, x, result_shape=like, call_with_device=True)

    outer = bench.compile(through)
    anomalies: list[Anomaly] = []
    for run in range(FEW_RUNS):
        seen.clear()
        anomalies += check_value(f"run {run}", lambda: outer(bench.operand), bench.operand)
        anomalies += check_quiet_barrier(bench, f"after run {run} of calls that tap")
        if sorted(seen) != [*map(float, range(len(bench.devices)))]:
            anomalies.append(Anomaly("lost", Stage.CALLBACK, f"in run {run} the inner taps saw {sorted(seen)}"))
    return anomalies[:3]


@planted("pmap pjit", "id_tap", "H9 H10", kind="runs_jax")
def tap_runs_jax(bench: Bench, callback: Callback) -> list[Anomaly]:
    traces: list[float] = []

    def host(operand: Any, transforms: Any) -> None:
        traces.append(float(jnp.trace(_host_side_jax(operand.reshape(-1, SMALL_SIDE)[:SMALL_SIDE]))))

    def through(x: Any) -> Any:
        return bench.implementation.tap(host, x) * 2.0

    wanted = sorted(float(jnp.trace(_host_side_jax(m))) for m in _first_matrices(bench))
    np.asarray(bench.compile(through)(_matrices(bench)))
    anomalies = check_quiet_barrier(bench, "after taps that ran JAX")
    if len(traces) != len(wanted) or not np.allclose(sorted(traces), wanted, rtol=1e-5):
        witness = f"taps that ran JAX computed {sorted(traces)}, expected {wanted}"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H12", minimum_devices=2)
def taps_of_an_inner_pmap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H12: taps of a program on several devices that a tap starts run at once: before the tap's function goes on."""
    devices = bench.devices[:2]
    ran: list[str] = []
    inner = jax.pmap(lambda x: bench.implementation.tap(lambda *_: ran.append("inner"), x), devices=devices)
    operand = np.arange(len(devices), dtype=np.float32)

    def outer(_: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(operand))
        ran.append("outer")

    # The first runs may take another way than the later ones.
    runs = 3
    for _ in range(runs):
        bench.implementation.tap(outer, np.float32(0))
        bench.implementation.barrier()
    wanted = ["inner", "inner", "outer"] * runs
    if ran != wanted:
        return [Anomaly("order", Stage.CALLBACK, f"in this order went on {ran}, expected {wanted}")]
    return check_quiet_barrier(bench, "after programs that a tap started")
