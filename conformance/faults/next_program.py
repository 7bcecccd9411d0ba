"""Fault cells of a program on a part of the devices on which an earlier one runs."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier
from .fault import planted

ROUNDS = 4
WHILE = 0.2
"""Seconds for what must not come."""


@planted("pmap", "call io_callback_ordered", "H5 X3", minimum_devices=2)
def one_of_its_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program on the last device of an earlier one, whose callback there still runs, begins after it."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    last = float(bench.operand[-1][0])
    seen: list[str] = []
    early = threading.Event()

    def slow(operand: Any) -> Any:
        if float(np.asarray(operand).ravel()[0]) == last:
            early.wait(WHILE)
            seen.append("on both")
        return np.asarray(operand)

    def quick(operand: Any) -> Any:
        seen.append("on one")
        early.set()
        return np.asarray(operand)

    on_both = bench.applying(callback, slow)
    on_one = jax.jit(lambda x: bench.apply(callback, quick, x))
    placed = jax.device_put(bench.operand[-1], bench.devices[-1])
    for compiled, operand in ((on_both, bench.operand), (on_one, placed)):
        # An implementation may take another way from the second run on.
        early.set()
        for _ in range(2):
            jax.block_until_ready(compiled(operand))
    anomalies = check_quiet_barrier(bench, "after the first programs")
    for _ in range(ROUNDS):
        seen.clear()
        early.clear()
        results = [on_both(bench.operand), on_one(placed)]
        jax.block_until_ready(results)
        if seen != ["on both", "on one"]:
            return [Anomaly("order", Stage.CALLBACK, f"the callbacks on the last device ran as {seen}")]
    return anomalies + check_quiet_barrier(bench, "after programs on both devices and on one")
