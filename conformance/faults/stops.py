"""Fault cells of stopping hostcb's threads, whatever they are about."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS
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


@planted("pmap", "id_tap", "H13 H17", minimum_devices=2)
def stops_after_programs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Stopping waits for programs that run, so their taps run before it returns."""
    entered, release = threading.Event(), threading.Event()
    seen: list[None] = []

    def slow(operand: Any) -> Any:
        entered.set()
        release.wait(2 * LATEST)
        return np.asarray(operand)

    def program(x: Any) -> Any:
        called = bench.implementation.call(slow, x, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return bench.implementation.tap(lambda *_: seen.append(None), called)

    compiled = bench.compile(program)
    at_the_end: list[int] = []

    def run() -> None:
        compiled(bench.operand)
        bench.implementation.stop()
        at_the_end.append(len(seen))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        if not entered.wait(LATEST):
            return [Anomaly("lost", Stage.CALLBACK, "no call began")]
        # One-sided: a slow machine can only miss the fault.
        thread.join(EARLY_SECONDS)
    finally:
        release.set()
    thread.join(LATEST)
    anomalies = check_quiet_barrier(bench, "after having been stopped")
    if at_the_end != [len(bench.devices)]:
        witness = f"of {len(bench.devices)} taps of a running program, {at_the_end} had run when the stop returned"
        anomalies.append(Anomaly("early stop", Stage.BARRIER, witness))
    return anomalies
