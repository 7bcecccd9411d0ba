"""Fault cells of callbacks that begin while an earlier one of their device still runs, and of barriers beside them."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

SLOW_SECONDS = 0.02
TAPS = 3
ROUNDS = 3


@planted("jit", "call", "H5")
def follows_slow_taps(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback that keeps the order begins when the taps before it have ended, not when they have begun."""
    seen: list[str] = []

    def slow(operand: Any, transforms: Any) -> None:
        seen.append("begins")
        time.sleep(SLOW_SECONDS)
        seen.append("ends")

    def host(operand: Any) -> Any:
        seen.append("follows")
        return np.asarray(operand) + np.float32(1)

    def computation(x: Any) -> Any:
        for _ in range(TAPS):
            x = bench.implementation.tap(slow, x)
        return bench.apply(callback, host, x)

    compiled = bench.compile(computation)
    anomalies: list[Anomaly] = []
    # The first values of a tap may take another way than those after them.
    for _ in range(ROUNDS):
        wanted = bench.expected(callback, bench.operand)
        anomalies += check_value("the program", lambda: compiled(bench.operand), wanted)
        anomalies += check_quiet_barrier(bench, "after slow taps")
        if seen != ["begins", "ends"] * TAPS + ["follows"]:
            anomalies.append(Anomaly("order", Stage.CALLBACK, f"beside slow taps the order was {seen}"))
        seen.clear()
    return anomalies[:3]


@planted("jit", "id_tap", "H13", minimum_devices=2, isolated=True)
def taps_on_new_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """While a barrier waits for a tap, another thread taps on devices that had none before."""
    first, *others = bench.devices
    begun = threading.Event()
    seen: list[int] = []

    def tapped(number: int, device: jax.Device) -> None:
        def host(operand: Any) -> None:
            if number == 0:
                begun.set()
                time.sleep(10 * SLOW_SECONDS)
            seen.append(number)

        jax.jit(lambda x: bench.apply(callback, host, x))(jax.device_put(np.float32(number), device))

    def tap_on_others() -> None:
        begun.wait()
        for number, device in enumerate(others, 1):
            tapped(number, device)

    thread = threading.Thread(target=tap_on_others)
    thread.start()
    tapped(0, first)
    anomalies = check_quiet_barrier(bench, "while other devices had their first taps")
    if 0 not in seen:
        anomalies.append(Anomaly("early barrier", Stage.BARRIER, f"after it {seen} had run"))
    thread.join()
    anomalies += check_quiet_barrier(bench, "after the first taps of other devices")
    if sorted(seen) != [*range(len(bench.devices))]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"the taps {sorted(seen)} of {len(bench.devices)} ran"))
    return anomalies
