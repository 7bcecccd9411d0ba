"""Fault cells of a barrier that a signal handler interrupts to fork: it goes on in both processes, each for its own."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

CHILD_SECONDS = 15
"""After these a child that hangs is ended; its barrier's timeout is longer."""


@planted("jit", "id_tap", "H17 H30", functions="barrier_wait", isolated=True, deadline=100.0)
@planted(
    "pmap", "call io_callback", "H17 H30", functions="barrier_wait", isolated=True, deadline=100.0, minimum_devices=2
)
def forks_at_a_barrier(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H17: the barrier returns in the child, which has nothing to wait for, and waits in the parent."""
    anomalies: list[Anomaly] = []
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    for timeout in (4 * CHILD_SECONDS, *((None,) if callback.function == "id_tap" else ())):
        anomalies += _check_fork(bench, callback, timeout)
        if anomalies:
            break
    return anomalies


def _check_fork(bench: Bench, callback: Callback, timeout: float | None) -> list[Anomaly]:
    parent = os.getpid()
    release, forked = threading.Event(), threading.Event()
    ended: list[None] = []
    children: list[int] = []
    statuses: list[int] = []

    def held(operand: Any) -> Any:
        release.wait(4 * CHILD_SECONDS)
        ended.append(None)
        return np.asarray(operand) + np.float32(1)

    def fork(*_: Any) -> None:
        child = os.fork()
        if child:
            children.append(child)
            forked.set()
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_SECONDS)

    def wait_for_child() -> None:
        if forked.wait(CHILD_SECONDS):
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
        release.set()

    bench.applying(callback, held)(bench.operand)
    thread = threading.Thread(target=wait_for_child)
    thread.start()
    before = signal.signal(signal.SIGALRM, fork)
    error: Exception | None = RuntimeError("interrupted")
    try:
        # A barrier that is late finds nothing to wait for in the child: that misses the fault.
        signal.setitimer(signal.ITIMER_REAL, EARLY_SECONDS)
        error = error_of(lambda: library(bench).barrier_wait(timeout=timeout))
    finally:
        if os.getpid() != parent:
            os._exit(0 if error is None and not ended else 1)
        signal.signal(signal.SIGALRM, before)
    thread.join()
    how = f"a barrier with the timeout {timeout}, interrupted to fork,"
    if error is not None or len(ended) != bench.callbacks_per_run:
        witness = f"{how} came to {error!r} in the parent, where {len(ended)} callbacks had ended"
        return [Anomaly("early barrier", Stage.BARRIER, witness)]
    if statuses not in ([], [0]):
        ends = {-signal.SIGALRM: "waits for ever", 1: "raised, or ran its parent's callback"}
        return [Anomaly("stuck", Stage.BARRIER, f"{how} in the child {ends.get(statuses[0], statuses)}")]
    return check_quiet_barrier(bench, "after a barrier that forked")
