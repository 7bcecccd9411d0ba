"""Fault cells of taps and calls that take long, start others, are batched along odd axes, or are kept too long."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.bench import Bench
from conformance.checkers import Anomaly
from conformance.compiler_faults import EQUAL, Counting, check_count
from conformance.fault_checks import check_quiet_barrier, check_value, error_of
from conformance.verdicts import Stage

SLOW_SECONDS = 0.1
SLOW_TAPS = 3
LATEST_SECONDS = 2.0
"""After this long what has not come will not come, and what is still alive is kept."""


def _slow(bench: Bench) -> list[Anomaly]:
    """The barrier waits for callbacks that take their time."""
    return _check_barrier_waits(bench, lambda run: run())


def _slow_in_another_thread(bench: Bench) -> list[Anomaly]:
    """The barrier waits, too, for callbacks that another thread has started."""

    def in_thread(run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return _check_barrier_waits(bench, in_thread)


def _check_barrier_waits(bench: Bench, start: Callable[[Callable[[], None]], None]) -> list[Anomaly]:
    begun: list[None] = []
    ended: list[None] = []
    overlaps: list[int] = []

    def slow(operand: Any, transforms: Any) -> None:
        begun.append(None)
        overlaps.append(len(begun) - len(ended))
        time.sleep(SLOW_SECONDS)
        ended.append(None)

    def computation(x: Any) -> Any:
        for _ in range(SLOW_TAPS):
            x = bench.implementation.tap(slow, x)
        return x

    compiled = bench.compile(computation)

    def run() -> None:
        compiled(bench.operand)

    start(run)
    bench.implementation.barrier()
    in_time, wanted = len(ended), SLOW_TAPS * bench.callbacks_per_run
    if in_time == wanted and max(overlaps) > bench.callbacks_per_run:
        # Devices may run beside each other, and each runs one callback at a time.
        witness = f"{max(overlaps)} callbacks of {bench.callbacks_per_run} devices were running at the same time"
        return [Anomaly("overlap", Stage.CALLBACK, witness)]
    if in_time == wanted:
        return []
    if _becomes_true(lambda: len(ended) == wanted):
        witness = f"{wanted - in_time} of {wanted} callbacks ended after the barrier had returned"
        return [Anomaly("early barrier", Stage.BARRIER, witness)]
    return [Anomaly("lost", Stage.CALLBACK, f"{wanted - len(ended)} of {wanted} slow callbacks never ended")]


def _becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LATEST_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def _tap_starts_callbacks(bench: Bench) -> list[Anomaly]:
    """A tap runs a program that taps and calls, and waits for its result."""
    return _check_inner_program(bench, lambda inner, x: bench.implementation.tap(lambda operand, _: inner(operand), x))


def _call_starts_callbacks(bench: Bench) -> list[Anomaly]:
    """As above from a call, whose result is made of the inner program's."""

    def call(inner: Callable[[Any], Any], x: Any) -> Any:
        return bench.implementation.call(inner, x, jax.ShapeDtypeStruct(jnp.shape(x), np.float32)) - 1.0

    return _check_inner_program(bench, call)


def _check_inner_program(bench: Bench, outer: Callable[[Callable[[Any], Any], Any], Any]) -> list[Anomaly]:
    seen: list[Any] = []
    results: list[Any] = []

    def computation(x: Any) -> Any:
        tapped = bench.implementation.tap(lambda operand, _: seen.append(operand), x)
        wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32)
        return bench.implementation.call(lambda operand: operand + np.float32(1), tapped, wanted)

    inner = jax.jit(computation)

    def host(operand: Any) -> Any:
        results.append(np.asarray(inner(operand)))
        return results[-1]

    compiled = bench.compile(lambda x: outer(host, x))
    anomalies = check_value("the outer program", lambda: compiled(bench.operand), bench.operand)
    anomalies += check_quiet_barrier(bench, "after callbacks that started others")
    for what, arrays, wanted in (("taps", seen, bench.operand), ("results", results, bench.operand + 1)):
        if len(arrays) != 1 or not np.array_equal(arrays[0], wanted):
            witness = f"the inner program's {what} are {arrays}, expected {wanted} alone"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


class _Host:
    """A function that can be seen to have gone."""

    def __call__(self, operand: Any, transforms: Any = None) -> Any:
        return operand


def _tap_is_forgotten(bench: Bench) -> list[Anomaly]:
    """A function is gone when the program that taps with it is."""
    return _check_forgotten(bench, bench.implementation.tap)


def _call_is_forgotten(bench: Bench) -> list[Anomaly]:
    def call(host: _Host, x: Any) -> Any:
        return bench.implementation.call(host, x, jax.ShapeDtypeStruct(jnp.shape(x), np.float32))

    return _check_forgotten(bench, call)


def _check_forgotten(bench: Bench, callback: Callable[[_Host, Any], Any]) -> list[Anomaly]:
    def run() -> weakref.ref[_Host]:
        host = _Host()
        np.asarray(bench.compile(lambda x: callback(host, x))(bench.operand))
        return weakref.ref(host)

    kept = run()
    error_of(bench.implementation.barrier)

    def is_gone() -> bool:
        jax.clear_caches()
        gc.collect()
        return kept() is None

    if _becomes_true(is_gone):
        return []
    return [Anomaly("leak", Stage.EXIT, "the program is gone, and the function that it called is still alive")]


def _nested_batch(bench: Bench) -> list[Anomaly]:
    """Every vmap says where its axis is, the innermost first: here they are two different ones."""
    told: list[Any] = []

    def host(operand: Any, transforms: Any) -> None:
        told.append((operand.shape, [dict(entry)["batch_dims"] for _, entry in transforms]))

    # Axis 2 is mapped inside, where it is the second one, and axis 0 outside.
    inner = jax.vmap(lambda x: bench.implementation.tap(host, x), in_axes=1, out_axes=1)
    bench.compile(jax.vmap(inner))(np.zeros((2, 3, 4), np.float32))
    anomalies = check_quiet_barrier(bench, "after a tap of two batches")
    wanted = [((2, 3, 4), [(1,), (0,)])]
    if told != wanted:
        witness = f"the tap was told {told}, expected {wanted}"
        anomalies.append(Anomaly("wrong transforms", Stage.CALLBACK, witness))
    return anomalies


def _equal_taps(bench: Bench) -> list[Anomaly]:
    return _check_equal_operands(bench, lambda host, x: bench.implementation.tap(lambda operand, _: host(operand), x))


def _equal_calls(bench: Bench) -> list[Anomaly]:
    def call(host: Callable[[Any], Any], x: Any) -> Any:
        return bench.implementation.call(host, x, jax.ShapeDtypeStruct(jnp.shape(x), np.float32))

    return _check_equal_operands(bench, call)


def _check_equal_operands(bench: Bench, callback: Callable[[Callable[[Any], Any], Any], Any]) -> list[Anomaly]:
    """Callbacks that nothing tells apart are as many as the program has: nothing may merge or remember them."""
    counting = Counting()
    compiled = bench.compile(lambda x: sum(callback(counting, x) for _ in range(EQUAL)))
    return check_count(bench, counting, compiled)


TAP_SCENARIOS: dict[tuple[str, str], Callable[[Bench], list[Anomaly]]] = {
    ("id_tap", "slow"): _slow,
    ("id_tap", "slow_in_another_thread"): _slow_in_another_thread,
    ("id_tap", "starts_callbacks"): _tap_starts_callbacks,
    ("call", "starts_callbacks"): _call_starts_callbacks,
    ("id_tap", "is_forgotten"): _tap_is_forgotten,
    ("call", "is_forgotten"): _call_is_forgotten,
    ("id_tap", "nested_batch"): _nested_batch,
    ("id_tap", "equal_operands"): _equal_taps,
    ("call", "equal_operands"): _equal_calls,
}
