"""Fault cells of devices that take turns to call back, and whose turns do not go as they did before."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .bench import Bench
from .checks import check_quiet_barrier, check_value
from .fault import planted

ROUNDS = 4


@planted("pmap", "call", "H5 H9", minimum_devices=2)
def waits_between_calls(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Devices that wait for each other between two calls: none waits for its turn until another has ended its own."""
    # Two devices show as much as eight, and take less time.
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])

    def computation(x: Any, count: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            called = bench.apply(callback, lambda operand: np.asarray(operand) + np.float32(1), carry)
            return called + 0 * jax.lax.psum(called, "devices")

        return jax.lax.fori_loop(0, count, step, x)

    compiled = jax.pmap(computation, axis_name="devices", in_axes=(0, None), devices=bench.devices)
    count = THRESHOLDS["least_turn"].value + 1
    wanted = bench.operand + np.float32(count)
    anomalies: list[Anomaly] = []
    # Devices take turns from the third execution on that calls as often as the one before.
    for _ in range(ROUNDS):
        anomalies += check_value(f"{count} calls", lambda: compiled(bench.operand, count), wanted)
    return anomalies[:3] + check_quiet_barrier(bench, "after calls with a sum between them")
