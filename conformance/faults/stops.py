"""Fault cells of stopping hostcb's threads, whatever they are about."""

from __future__ import annotations

import threading
from typing import Any

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier
from .fault import planted

ROUNDS = 12
TAPS = 3
LATEST = 10.0


@planted("jit", "id_tap", "H17")
def stops_at_once(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Stopping just after a tap has run, when its thread waits for the next one, ends that thread."""
    ran = threading.Event()
    before = {*threading.enumerate()}

    def host(operand: Any) -> None:
        ran.set()

    compiled = bench.applying(callback, host)
    compiled(bench.operand)
    bench.implementation.barrier()
    for number in range(ROUNDS):
        # Several in a short time, without a barrier, which would wake the thread.
        for _ in range(TAPS):
            ran.clear()
            compiled(bench.operand)
            if not ran.wait(LATEST):
                return [Anomaly("lost", Stage.CALLBACK, f"a tap of round {number} did not run without a barrier")]
        bench.implementation.stop()
    left = [each.name for each in threading.enumerate() if each not in before and each.name.startswith("hostcb")]
    if left:
        return [Anomaly("leak", Stage.EXIT, f"after a stop there are the threads {left}")]
    return check_quiet_barrier(bench, "after having been stopped")
