"""Fault cells of what programs leave behind that have run and whose results are gone."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from ..spec.external_callbacks import callback_named
from .barriers import PATIENCE, HeldTap
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

WARM_UP = 5
RUNS = 60
"""Fewer than the executions of which an implementation may keep those that have ended."""
LOOKS = 12
LOOK_SECONDS = 0.01
MANY_RUNS = 600
"""Many more than those."""


@planted("jit", "call pure_callback io_callback debug_callback", "H3 H18 X2 X3 X4")
def runs_leave_nothing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The objects of the process do not grow in number with the runs of a program, also before the next barrier."""

    def host(operand: Any) -> Any:
        return np.asarray(operand) + np.float32(1)

    def computation(x: Any) -> Any:
        result = bench.apply(callback, host, x)
        # A callback without an effect comes last: the program has one all the same.
        return bench.apply(callback_named("pure_callback"), host, result) if callback.runs is Runs.ONCE else result

    compiled = bench.compile(computation)

    def run(times: int) -> int:
        for _ in range(times):
            jax.block_until_ready(compiled(bench.operand))
        gc.collect()
        return len(gc.get_objects())

    run(WARM_UP)
    before = run(WARM_UP)
    grown = run(RUNS) - before
    anomalies: list[Any] = []
    if grown >= 2 * RUNS:
        anomalies.append(Anomaly("leak", Stage.EXIT, f"{RUNS} runs left {grown} objects"))
    return anomalies + check_quiet_barrier(bench, "after many runs")


@planted("pmap shard_map", "id_tap call io_callback_ordered", "H3 H18 X3", minimum_devices=2)
def unawaited_runs_leave_nothing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As `runs_leave_nothing`, of programs on several devices that nobody waits for until the barrier."""

    def host(operand: Any) -> Any:
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)

    def run(times: int) -> int:
        for _ in range(times):
            compiled(bench.operand)
        bench.implementation.barrier()
        gc.collect()
        return len(gc.get_objects())

    # It may keep so many that have ended, and not more with more runs.
    before = run(RUNS)
    grown = run(MANY_RUNS) - before
    if grown >= MANY_RUNS:
        return [Anomaly("leak", Stage.EXIT, f"{MANY_RUNS} runs left {grown} objects")]
    return check_quiet_barrier(bench, "after many runs")


@planted("jit pmap", "id_tap call", "H13 H30", functions="barrier_wait")
def looks_leave_nothing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: barriers that end by their timeouts, one after the other, do not leave threads behind."""
    held = HeldTap()

    def host(operand: Any) -> Any:
        held(operand, ())
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    held.release.set()
    jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    held.release.clear()
    held.entered.clear()
    thread = threading.Thread(target=lambda: jax.block_until_ready(compiled(bench.operand)), daemon=True)
    thread.start()
    try:
        if not held.entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the callback did not begin")]
        threads: list[int] = []
        ended: list[Exception | None] = []
        for _ in range(LOOKS):
            ended.append(error_of(lambda: library(bench).barrier_wait(timeout=LOOK_SECONDS)))
            threads.append(threading.active_count())
    finally:
        held.release.set()
        thread.join(PATIENCE)
    anomalies = check_quiet_barrier(bench, "after barriers with timeouts")
    # A thread that has been told to end may still be counted, on a busy machine. A thread for each look may not.
    if not all(isinstance(each, TimeoutError) for each in ended) or threads[-1] >= threads[0] + LOOKS // 2:
        witness = f"barriers with a timeout ended with {ended}, and after each there were {threads} threads"
        anomalies.append(Anomaly("leak", Stage.BARRIER, witness))
    return anomalies
