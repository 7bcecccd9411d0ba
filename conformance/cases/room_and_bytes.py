"""Fault cells of what statistics say of bytes, and of the time for which a device waited for room."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, PATIENCE, HeldTap
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library

LONG_SECONDS, SHORT_SECONDS = 0.4, 0.05
TRIES = 5


@planted("jit", "id_tap call", "H12 H29", functions="stats", isolated=True)
def bytes_of_small_types(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: the bytes of an operand are those of the array that the function gets: NumPy has a byte for an int4."""
    counted, size = library(bench).stats(), 1000
    anomalies = []
    for name in ("int4", "uint2", "bool", "bfloat16", "float32"):
        before = library(bench).stats()
        given: list[int] = []

        def host(operand: Any, given: list[int] = given) -> Any:
            given.append(np.asarray(operand).nbytes)
            return np.float32(1)

        def function(x: Any, host: Any = host) -> Any:
            return bench.apply(callback, host, x, jax.ShapeDtypeStruct((), np.float32))

        jax.block_until_ready(jax.jit(function)(jnp.ones(size, name)))
        anomalies += check_quiet_barrier(bench, f"after {name}")
        found = [of.bytes for of in (library(bench).stats() - before).devices.values()]
        if found != given:
            witness = f"{found} bytes of {size} elements of {name} are counted, and the function got {given}"
            anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    whole = (library(bench).stats() - counted)[bench.devices[0]]
    shown = str(library(bench).stats())
    calls = sum(whole.calls.values())
    if callback.function == "call" and not (calls == 5 and " 5 " in f"{shown} ".replace("\n", " ")):
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"after five calls, {calls} are counted, and shown {shown}"))
    return anomalies


@planted("jit", "id_tap", "H12 H29", functions="stats", isolated=True)
def waits_for_room_in_a_block(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: the seconds for which a device waited for room are those between the two moments, as other counts are."""
    held = HeldTap()
    library(bench).stats()
    jax.config.update("jax_host_callback_max_queue_byte_size", 2 * bench.operand.nbytes)
    compiled = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, y: bench.implementation.tap(held, y), x))
    compiled.lower(bench.operand).compile()
    device = bench.devices[0]
    thread = threading.Thread(target=lambda: jax.block_until_ready(compiled(bench.operand)), daemon=True)
    try:
        thread.start()
        thread.join(EARLY_SECONDS)
    finally:
        held.release.set()
    thread.join(PATIENCE)
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    moment = library(bench).stats()
    waited, later = moment[device].waited_for_room, (library(bench).stats() - moment)[device].waited_for_room
    jax.config.update("jax_host_callback_max_queue_byte_size", None)
    if waited <= 0 or later != 0:
        witness = f"the device waited for room for {waited} s, and then for {later} s, where nothing was tapped"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H12 H29", functions="stats", isolated=True)
def room_is_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: the seconds for which a device waited for room add up, also after the backends were cleared."""
    size = 800
    library(bench).stats()

    def waits(seconds: float) -> None:
        """A second value waits for the first, which is held for so long."""
        held = HeldTap()
        operand = np.zeros(size // 4, np.float32)
        bench.implementation.tap(held, operand)
        held.entered.wait(PATIENCE)
        thread = threading.Thread(target=lambda: bench.implementation.tap(held, operand), daemon=True)
        thread.start()
        thread.join(seconds)
        held.release.set()
        thread.join(PATIENCE)
        bench.implementation.barrier()

    def counted() -> float:
        return sum(of.waited_for_room for of in library(bench).stats().devices.values())

    with bench.implementation.queue_of(2 * size - 1):
        waits(LONG_SECONDS)
        first = counted()
        jax.extend.backend.clear_backends()
        before = counted()
        # A thread that is late has less to wait for, or nothing.
        for _ in range(TRIES):
            waits(SHORT_SECONDS)
            if counted() != before:
                break
        after = counted()
    anomalies = check_quiet_barrier(bench, "after full queues")
    if not 0 < first <= before < after:
        witness = f"it waited for {first:g} s, {before:g} s after the backends were cleared, and {after:g} s in the end"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies
