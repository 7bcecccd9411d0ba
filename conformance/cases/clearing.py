"""Fault cells of `jax.extend.backend.clear_backends`: what is queued runs, and later callbacks have the new devices."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.extend.backend
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, HeldTap
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted
from .traces import library

PATIENCE = 15.0
"""Seconds after which an event that must happen counts as missing."""


@planted("jit", "id_tap", "H5 H9", isolated=True)
def clears_backends(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What is queued runs, and its threads end with their devices; old and new programs tap on the devices of now."""
    tap = library(bench).id_tap
    opened = threading.Event()
    seen: list[tuple[float, bool]] = []

    def note(operand: Any, transforms: Any, *, device: Any) -> None:
        opened.wait(PATIENCE)
        seen.append((float(operand), any(device is each for each in jax.devices())))

    def program(x: Any) -> Any:
        return tap(note, x, tap_with_device=True) + 1

    compiled = jax.jit(program)
    anomalies: list[Anomaly] = []
    number = 0.0
    before = threading.enumerate()
    for _ in range(2):
        opened.clear()
        for run in (compiled, jax.jit(lambda x: program(x)), compiled):
            wanted = np.float32(number + 1)
            anomalies += check_value("a program", lambda r=run, n=number: r(np.float32(n)), wanted)  # type: ignore[misc]
            number += 1
        opened.set()
        jax.extend.backend.clear_backends()
        if len(seen) != number:
            witness = f"{len(seen)} of {number:g} taps had run when the clients were gone"
            anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
        anomalies += _check_ended(before)
        wanted = np.float32(number + 1)
        anomalies += check_value("a program of before", lambda n=number: compiled(np.float32(n)), wanted)  # type: ignore[misc]
        number += 1
        anomalies += check_quiet_barrier(bench, "after clear_backends")
    if seen != [(float(each), True) for each in range(int(number))]:
        witness = f"taps saw {seen}: values in order, each with whether its device is one of now"
        anomalies.append(Anomaly("wrong device", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H5 H29", functions="stats", isolated=True, deadline=40.0)
def clears_caches_later(bench: Bench, callback: Callback) -> list[Anomaly]:
    """After `clear_backends`, `jax.clear_caches` is what it was: it waits for no tap, and forgets no count."""
    held = HeldTap()
    held.release.set()
    counted = library(bench).stats()

    def taps(times: int) -> None:
        compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
        for number in range(times):
            compiled(np.float32(number))

    taps(1)
    bench.implementation.barrier()
    jax.extend.backend.clear_backends()
    held.release.clear()
    held.entered.clear()
    taps(3)
    clearing = threading.Thread(target=jax.clear_caches, daemon=True)
    clearing.start()
    clearing.join(PATIENCE)
    waited = clearing.is_alive()
    held.release.set()
    anomalies = check_quiet_barrier(bench, "after the caches were cleared")
    if waited:
        anomalies.append(Anomaly("hang", Stage.BARRIER, "jax.clear_caches waited for a tap that was held"))
    found = sum(of.taps_run for of in (library(bench).stats() - counted).devices.values())
    if found != 4:
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"{found} taps were counted, expected 4"))
    return anomalies


@planted("jit", "id_tap", "H5", functions="barrier_wait", isolated=True)
def clears_inside_a_tap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H5: a tap that clears the backends ends before the taps behind it begin, and these run without a barrier."""
    go, later = threading.Event(), threading.Event()
    order: list[int] = []

    def clears(operand: Any, transforms: Any) -> None:
        go.wait(PATIENCE)
        jax.extend.backend.clear_backends()
        # One-sided: a tap that runs too early has this time.
        later.wait(EARLY_SECONDS)
        order.append(0)

    def noted(operand: Any, transforms: Any) -> None:
        order.append(int(operand))
        later.set()

    bench.implementation.tap(clears, np.int32(0))
    bench.implementation.tap(noted, np.int32(1))
    go.set()
    ran = later.wait(PATIENCE)
    anomalies = check_quiet_barrier(bench, "after a tap that cleared the backends")
    bench.implementation.tap(noted, np.int32(2))
    anomalies += check_quiet_barrier(bench, "after a tap on the new devices")
    if not ran or order != [0, 1, 2]:
        anomalies.append(
            Anomaly("order", Stage.CALLBACK, f"a tap that clears, one behind it, and a later one: {order}")
        )
    return anomalies


def _check_ended(before: list[threading.Thread]) -> list[Anomaly]:
    """Nothing serves the devices that are gone."""
    deadline = time.monotonic() + PATIENCE
    others = [thread for thread in threading.enumerate() if thread not in before]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    alive = [thread.name for thread in others if thread.is_alive()]
    return [Anomaly("leak", Stage.EXIT, f"{alive} outlived the devices")] if alive else []
