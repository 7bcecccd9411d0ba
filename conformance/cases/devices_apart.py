"""Fault cells of programs on several devices of which one is held up: what waits for it, and what must not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, PATIENCE
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

RUNS = 2
STALL_SECONDS = 0.1


@planted("pmap shard_map", "call io_callback_ordered", "H5 H13", minimum_devices=2, functions="barrier_wait")
def goes_on_beside_a_slow_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H5: what comes on a device after a program waits for that device alone, and JAX's barrier for its own thread."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    release = threading.Event()
    late: list[str] = []
    what = ""

    def held(operand: Any) -> Any:
        # The other thread's program is held up on both devices.
        slow = what.startswith("JAX") or np.asarray(operand).ravel()[0] > 0
        if slow and not release.wait(PATIENCE):
            late.append(what)
        return np.asarray(operand)

    compiled = bench.applying(callback, held)
    first = jax.device_put(np.float32(0), bench.devices[0])
    tapped = jax.jit(lambda x: bench.implementation.tap(lambda *_: release.set(), x))
    beside = jax.jit(lambda x: bench.implementation.tap(lambda *_: None, x))

    def in_another_thread() -> None:
        beside(first)
        thread = threading.Thread(target=lambda: results.append(compiled(bench.operand)))
        thread.start()
        thread.join()
        # What this thread has started is `beside` alone.
        jax.effects_barrier()
        release.set()

    def then(tap: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            results.append(compiled(bench.operand))
            tap()

        return run

    ways = {
        "a program": then(lambda: tapped(first)),
        "a tap outside jit": then(lambda: bench.implementation.tap(lambda *_: release.set(), first)),
        "JAX's barrier of another thread": in_another_thread,
    }
    for way, run in ways.items():
        if late:
            break
        for each in range(RUNS + 1):
            what = way
            results: list[Any] = []
            # Nothing is held up in the first run, which compiles.
            (release.clear if each else release.set)()
            run()
            jax.block_until_ready(results)
            bench.implementation.barrier()
            if late:
                break
    return [
        Anomaly("stuck", Stage.DISPATCH, f"{way} waited for another device than its own") for way in dict.fromkeys(late)
    ] + check_quiet_barrier(bench, "after a slow device")


@planted(
    "shard_map",
    "id_tap io_callback_ordered",
    "H5 H12",
    minimum_devices=2,
    functions="barrier_wait",
    isolated=True,
    deadline=60.0,
)
def started_in_a_queue_and_beside(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H12: a queued function waits for a program that another thread runs, too: neither waits for the other's queue.

    The values are small or large, and the queue has no room for them. And the barrier waits for all of them.
    """
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    anomalies: list[Anomaly] = []
    for length in (200, 40_000):
        anomalies += _check_beside(bench, callback, length)
        if anomalies:
            break
    return anomalies


def _check_beside(bench: Bench, callback: Callback, length: int) -> list[Anomaly]:
    started = threading.Event()
    started.set()
    ran: list[float] = []

    def slow(operand: Any) -> Any:
        started.wait(PATIENCE)
        return np.asarray(operand)

    def noted(operand: Any) -> Any:
        ran.append(float(np.asarray(operand).ravel()[0]))
        return np.asarray(operand)

    def program(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return bench.apply(callback, noted, library(bench).pure_callback(slow, shape, x), shape)

    compiled = bench.compile(program)
    operands = [jax.device_put(np.full((2, length), number, np.float32), bench.split) for number in range(2)]
    jax.block_until_ready(compiled(operands[0]))
    bench.implementation.barrier()
    begun, go = threading.Event(), threading.Event()

    def outer(operand: Any, transforms: Any) -> None:
        begun.set()
        go.wait(PATIENCE)
        result = compiled(operands[1])
        started.set()
        jax.block_until_ready(result)

    value = np.zeros(length // 2, np.float32)
    ended: list[None] = []

    def run() -> None:
        go.set()
        bench.implementation.tap(outer, value)
        bench.implementation.barrier()
        for event in (begun, go, started):
            event.clear()
        ran.clear()
        bench.implementation.tap(outer, value)
        begun.wait(PATIENCE)
        result = compiled(operands[0])
        go.set()
        jax.block_until_ready(result)
        bench.implementation.barrier()
        ended.append(None)

    # The queue has room for the value of `outer`, and for none beside it.
    with bench.implementation.queue_of(length * 5 // 2):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(2 * PATIENCE)
    if not ended:
        return [Anomaly("stuck", Stage.CALLBACK, f"with values of {4 * length} bytes, two runs wait for each other")]
    if sorted(ran) != [0.0, 0.0, 1.0, 1.0]:
        return [Anomaly("lost", Stage.CALLBACK, f"with values of {4 * length} bytes, two runs called with {ran}")]
    return check_quiet_barrier(bench, "after runs in a queue and beside it")


@planted("shard_map", "id_tap", "H13", minimum_devices=2, functions="barrier_wait", isolated=True, deadline=60.0)
def barrier_covers_nested_and_queued(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: the barrier waits for the queued taps of a program that a callback has started before another thread did."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    others, stalls = threading.Event(), threading.Event()
    others.set()
    ended: list[float] = []

    def slow(operand: Any) -> Any:
        others.wait(PATIENCE)
        return np.asarray(operand)

    def tapped(operand: Any) -> None:
        if stalls.is_set():
            # Long enough for a barrier that does not wait for it, and no more than that.
            threading.Event().wait(STALL_SECONDS)
        ended.append(float(np.asarray(operand).ravel()[0]))

    def program(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return bench.apply(callback, tapped, library(bench).pure_callback(slow, shape, x))

    compiled = bench.compile(program)
    operands = [jax.device_put(np.full((2, 1), number, np.float32), bench.split) for number in range(2)]
    jax.block_until_ready(compiled(operands[0]))
    bench.implementation.barrier()
    begun, go, nested = threading.Event(), threading.Event(), threading.Event()
    go.set()

    def outer(operand: Any, transforms: Any) -> None:
        begun.set()
        go.wait(PATIENCE)
        result = compiled(operands[1])
        nested.set()
        jax.block_until_ready(result)

    def beside() -> None:
        nested.wait(PATIENCE)
        result = compiled(operands[0])
        others.set()
        jax.block_until_ready(result)

    value = np.float32(1)
    bench.implementation.tap(outer, value)
    bench.implementation.barrier()
    anomalies: list[Anomaly] = []
    stalls.set()
    for _ in range(RUNS):
        for event in (begun, go, nested, others):
            event.clear()
        ended.clear()
        thread = threading.Thread(target=beside)
        thread.start()
        bench.implementation.tap(outer, value)
        begun.wait(PATIENCE)
        # One-sided: a barrier that is late finds the program that has been started.
        threading.Timer(EARLY_SECONDS, go.set).start()
        bench.implementation.barrier()
        found = ended.count(1.0)
        thread.join(PATIENCE)
        anomalies += check_quiet_barrier(bench, "after runs in a queue and beside it")
        if found != 2 or sorted(ended) != [0.0, 0.0, 1.0, 1.0]:
            witness = f"{found} of 2 taps of a nested program had ended when the barrier returned, and later {ended}"
            anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    return anomalies


@planted(
    "shard_map",
    "io_callback_ordered call",
    "H5 H14 H15",
    minimum_devices=2,
    functions="barrier_wait",
    isolated=True,
    deadline=60.0,
)
@planted("jit", "id_tap call io_callback_ordered", "H5 H14 H15", functions="barrier_wait", isolated=True, deadline=60.0)
def log_that_runs_programs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H14: a handler of the log runs a program with a callback when one has failed, and everything goes on."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    seen: list[float] = []
    metric = jax.jit(lambda x: bench.implementation.tap(lambda operand, _: seen.append(float(operand)), x + 1))
    jax.block_until_ready(metric(np.float32(0)))
    bench.implementation.barrier()
    seen.clear()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.ERROR:
                jax.block_until_ready(metric(np.float32(1)))

    def failing(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == 0:
            raise OSError(PLANTED)
        return np.asarray(operand)

    compiled = bench.applying(callback, failing)
    told: list[Any] = []

    def run() -> None:
        for _ in range(RUNS):
            error = error_of(lambda: jax.block_until_ready(compiled(bench.operand)))
            reported: Any = error_of(bench.implementation.barrier)
            raised = callback.function == "id_tap" or PLANTED in str(error)
            told.append((raised, len(getattr(reported, "failures", ()))))

    logger = logging.getLogger("hostcb")
    handler = Handler()
    logger.addHandler(handler)
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(2 * PATIENCE)
    finally:
        logger.removeHandler(handler)
    if told != [(True, 1)] * RUNS or seen != [2.0] * RUNS:
        witness = f"of {RUNS} runs that failed it told {told}, and the programs of the log tapped {seen}"
        return [Anomaly("stuck", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a log that runs programs")
