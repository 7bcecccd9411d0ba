"""Fault cells of devices that take turns to call back, and whose turns do not go as they did before."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

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


CALLS = 500
STALL_SECONDS = 1e-5


@planted("pmap", "call", "H5 H9", minimum_devices=2)
def many_calls_between_sums(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Many calls of two devices, some of them slower, and then a sum, twice: a device that waits gets its turn."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    called = [0]

    def host(operand: Any) -> Any:
        called[0] += 1
        if not called[0] % 20:
            # No wait for something: the slower one is the point.
            threading.Event().wait(STALL_SECONDS)
        return operand

    def computation(x: Any) -> Any:
        number = jax.ShapeDtypeStruct((), np.float32)

        def outer(carry: Any, _: Any) -> Any:
            carry = jax.lax.fori_loop(0, CALLS, lambda _, inner: bench.apply(callback, host, inner, number), carry)
            return jax.lax.psum(carry, "devices") / 2, None

        return jax.lax.scan(outer, x, None, length=2)[0]

    compiled = jax.pmap(computation, axis_name="devices", devices=bench.devices)
    operand, wanted = np.arange(2, dtype=np.float32), np.full(2, 0.5, np.float32)
    anomalies: list[Anomaly] = []
    for run in range(ROUNDS + 2):
        anomalies += check_value(f"run {run}", lambda: compiled(operand), wanted)
    anomalies += check_quiet_barrier(bench, "after calls with sums between them")
    if called[0] != (ROUNDS + 2) * 2 * 2 * CALLS:
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, f"it was called {called[0]} times"))
    return anomalies[:3]
