"""Fault cells of barriers: a callback of each kind is held up, and the barrier must not return before it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.registry import EVERY_EFFECT, planted

PATIENCE = 15.0
"""Seconds after which an event that must happen counts as missing."""

EARLY_SECONDS = 0.1
"""The time in which a barrier may return too early. It is one-sided: a slow machine can only miss the fault."""


class HeldTap:
    """A tap's function that tells that it has begun, and waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, operand: Any, transforms: Any) -> None:
        self.entered.set()
        self.release.wait(2 * PATIENCE)


@planted("jit", EVERY_EFFECT, "H13")
@planted("pmap", "id_tap call io_callback", "H13")
def barrier_covers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A thread starts a program and waits at the barrier; meanwhile the callback waits for an event."""
    return _check_covers(bench, callback, bench.implementation.barrier)


@planted("jit", "id_tap debug_callback", "H13")
@planted("pmap", "id_tap", "H13")
def jaxs_barrier_covers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: so does JAX's own barrier, also after a program of JAX's own callbacks."""
    own = jax.jit(lambda x: (jax.debug.callback(lambda _: None, x), x)[1])

    def after_another() -> None:
        own(np.float32(1))
        jax.effects_barrier()

    anomalies = _check_covers(bench, callback, jax.effects_barrier)
    anomalies += _check_covers(bench, callback, jax.effects_barrier, again=True)
    return anomalies or _check_covers(bench, callback, after_another)


def _check_covers(bench: Bench, callback: Callback, barrier: Callable[[], None], again: bool = False) -> list[Anomaly]:
    """`again` asks the second run of a program, for which there may be another way, on its last device alone."""
    entered, release, passed = threading.Event(), threading.Event(), threading.Event()
    ended: list[None] = []
    in_time: list[int] = []
    errors: list[Exception] = []

    def host(operand: Any) -> Any:
        if not again or np.asarray(operand).ravel()[-1] == bench.operand.ravel()[-1]:
            entered.set()
            release.wait(2 * PATIENCE)
        ended.append(None)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    if again:
        release.set()
        compiled(bench.operand)
        bench.implementation.barrier()
        for event in (entered, release):
            event.clear()
        ended.clear()

    def run() -> None:
        try:
            compiled(bench.operand)
            barrier()
        except Exception as error:
            errors.append(error)
        in_time.append(len(ended))
        passed.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        if not entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the callback did not begin")]
        passed.wait(EARLY_SECONDS)
    finally:
        release.set()
    thread.join(PATIENCE)
    if thread.is_alive():
        return [Anomaly("stuck", Stage.BARRIER, "the barrier did not return after the callback had ended")]
    if errors:
        return [Anomaly("error", Stage.BARRIER, f"the program or its barrier failed: {summary(errors[0])}")]
    if in_time != [bench.callbacks_per_run]:
        witness = f"{in_time[0]} of {bench.callbacks_per_run} callbacks had ended when the barrier returned"
        return [Anomaly("early barrier", Stage.BARRIER, witness)]
    return []


@planted("jit", "id_tap call", "H13")
def barrier_inside(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: a barrier in a callback would wait for this callback, so it is refused, and what comes after is as usual."""
    errors: list[str] = []

    def host(operand: Any) -> Any:
        try:
            bench.implementation.barrier()
        except RuntimeError as error:
            errors.append(str(error))
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    for _ in range(2):
        jax.block_until_ready(compiled(bench.operand))
        bench.implementation.barrier()
    if len(errors) != 2 or not all("inside a callback" in error for error in errors):
        witness = f"two barriers inside of callbacks must be refused with words, came {errors}"
        return [Anomaly("not refused", Stage.BARRIER, witness)]
    return []


@planted("jit", "id_tap", "H13", functions="barrier_wait", isolated=True)
def jaxs_barrier_in_a_tap(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: JAX's barrier in a tap does not wait for the queue, and the barrier waits for that tap still."""
    passed = threading.Event()
    early: list[bool] = []
    inner = jax.jit(lambda x: bench.implementation.tap(lambda *_: None, x))

    def outer(operand: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(np.float32(1)))
        jax.effects_barrier()
        # One-sided: a barrier that returns too early has this time.
        early.append(passed.wait(EARLY_SECONDS))

    for compiled in (jax.jit(lambda x: bench.implementation.tap(outer, x)), bench.compile(lambda x: x)):
        for each in range(2):
            passed.clear()
            early.clear()
            compiled(bench.operand)
            if each:
                bench.implementation.tap(outer, bench.operand)
            bench.implementation.barrier()
            found = len(early)
            passed.set()
            bench.implementation.barrier()
            if found != len(early) or any(early):
                witness = f"{found} of {len(early)} taps that wait at JAX's barrier had ended when the barrier returned"
                return [Anomaly("early barrier", Stage.BARRIER, witness)]
    return []
