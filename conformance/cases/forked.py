"""Fault cells of a forked child beside its parent's queued values."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

VALUES = 5
PATIENCE = 20.0
CHILD_SECONDS = 10
"""After these a child that hangs is ended."""


@planted("jit", "id_tap", "H17")
def forks_beside_a_queue(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A child has nothing of its parent's queue: its barrier returns, and the values run in the parent alone."""
    begun, gate = threading.Event(), threading.Event()
    gate.set()
    seen: list[float] = []

    def host(operand: Any) -> Any:
        begun.set()
        gate.wait(PATIENCE)
        seen.append(float(np.asarray(operand)))

    compiled = jax.jit(
        lambda x: jax.lax.fori_loop(0, VALUES, lambda _, carry: bench.apply(callback, host, carry) + 1, x)
    )
    anomalies: list[Anomaly] = []
    # A first value may take another way into the queue than those after it.
    for queued in ("from the first run", "all", "all"):
        anomalies += check_value("the program", lambda: compiled(np.float32(0)), np.float32(VALUES))
        if queued == "all":
            begun.wait(PATIENCE)
            anomalies += _check_child(bench, seen, gate)
        anomalies += check_quiet_barrier(bench, "in the parent")
        if seen != [float(number) for number in range(VALUES)]:
            anomalies.append(Anomaly("lost", Stage.CALLBACK, f"of {VALUES} values, {seen} ran in the parent"))
        seen.clear()
        begun.clear()
        gate.clear()
    return anomalies[:3]


def _check_child(bench: Bench, seen: list[float], gate: threading.Event) -> list[Anomaly]:
    """Fork while the queue has values; the parent's may run when the child has ended."""
    status = _status_of_child(lambda: _is_left_alone(bench, seen))
    gate.set()
    if status == 0:
        return []
    how = {-signal.SIGALRM: "it waits for ever", 1: "it ran a value of its parent's, or its barrier failed"}
    return [Anomaly("stale value", Stage.BARRIER, f"in a forked child: {how.get(status, f'it ended with {status}')}")]


def _is_left_alone(bench: Bench, seen: list[float]) -> bool:
    bench.implementation.barrier()
    return not seen


def _status_of_child(run: Callable[[], bool]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        status = 0 if run() else 1
    finally:
        os._exit(status)


@planted("pmap shard_map", "call io_callback", "H17", minimum_devices=2, functions="barrier_wait")
def forks_beside_a_program(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that runs in the parent is not the child's: neither hostcb's barrier nor JAX's waits for it there."""
    release = threading.Event()

    def held(operand: Any) -> Any:
        release.wait(PATIENCE)
        return np.asarray(operand) + np.float32(1)

    result = bench.applying(callback, held)(bench.operand)

    def returns() -> bool:
        bench.implementation.barrier()
        jax.effects_barrier()
        return True

    status = _status_of_child(returns)
    release.set()
    anomalies = check_value("the program", lambda: result, bench.expected(callback, bench.operand))
    if status != 0:
        anomalies.append(Anomaly("barrier error", Stage.BARRIER, f"the child's barriers ended with {status}"))
    return anomalies + check_quiet_barrier(bench, "after a forked child")


@planted("jit", "id_tap", "H17", functions="barrier_wait", isolated=True)
def child_taps_again(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that the parent has run taps in a child as well, and the parent's goes on as before."""
    seen: list[float] = []
    compiled = bench.applying(callback, lambda operand: seen.append(float(np.asarray(operand))))

    def taps() -> bool:
        seen.clear()
        for number in range(VALUES):
            compiled(np.float32(number))
        bench.implementation.barrier()
        return seen == [float(number) for number in range(VALUES)]

    results = [taps(), _status_of_child(taps), taps()]
    if results != [True, 0, True]:
        witness = f"whether the parent's taps ran, the child's status, and the parent's again: {results}"
        return [Anomaly("lost", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after a forked child")
