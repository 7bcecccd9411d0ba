"""Fault cells of what a program does after one of its callbacks has failed: it calls back no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import PATIENCE
from .harness.bench import Bench
from .harness.checks import PLANTED, check_value, error_of
from .harness.registry import planted

START = np.float32(10)
STEPS = 4
FAILING = 2
"""The call that fails, counted from 0."""


def _programs(step: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """A step some times, in a loop and one by one."""

    def one_by_one(x: Any) -> Any:
        for _ in range(STEPS):
            x = step(x)
        return x

    return {
        "in a loop": jax.jit(lambda x: jax.lax.fori_loop(0, STEPS, lambda _, carry: step(carry), x)),
        "one by one": jax.jit(one_by_one),
    }


@planted("jit", "call pure_callback io_callback io_callback_ordered buffer_callback dlpack_callback")
def nothing_after_a_failure(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Callbacks that take the result of a failed one, in a loop and one by one, do not run with what it left."""
    seen: list[float] = []
    armed: list[bool] = []

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)))
        if armed and len(seen) == FAILING + 1:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    def step(x: Any) -> Any:
        return bench.apply(callback, host, x)

    anomalies = []
    for label, program in _programs(step).items():
        armed.clear()
        start, wanted = START, START + np.float32(STEPS)
        # The second dispatch of a program may go another way than the first.
        for _ in range(2):
            anomalies += check_value(f"{label} before", lambda p=program, x=start: p(x), wanted)  # type: ignore[misc]
        seen.clear()
        armed.append(True)
        error = error_of(lambda p=program, x=start: p(x))  # type: ignore[misc]
        error_of(bench.implementation.barrier)
        if error is None or PLANTED not in str(error):
            anomalies.append(Anomaly("swallowed error", Stage.DISPATCH, f"{label} the failure gave {error!r}"))
        if seen != [float(start) + number for number in range(FAILING + 1)]:
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{label} the callbacks saw {seen}"))
        armed.clear()
        anomalies += check_value(f"{label} afterwards", lambda p=program, x=start: p(x), wanted)  # type: ignore[misc]
    return anomalies


@planted("jit", "call", "H14 H15")
def no_tap_after_a_failure(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap of what a failed call should have returned does not run; those before it have run, and later ones do."""
    tapped: list[float] = []
    armed: list[bool] = []

    def host(operand: Any) -> Any:
        if armed and float(np.asarray(operand)) == START + FAILING:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    def step(x: Any) -> Any:
        result = bench.apply(callback, host, x)
        return bench.implementation.tap(lambda operand, _: tapped.append(float(operand)), result)

    anomalies: list[Anomaly] = []
    every = [float(START + number + 1) for number in range(STEPS)]
    for label, program in _programs(step).items():
        # From the second dispatch on it may go another way; and a failure may come in any of them.
        for run, fails in enumerate((False, False, True, True, False, True, False)):
            tapped.clear()
            armed[:] = [fails] * fails
            error = error_of(lambda p=program: p(START))  # type: ignore[misc]
            told = error_of(bench.implementation.barrier)
            if (PLANTED in str(error)) != fails or (PLANTED in str(told)) != fails:
                witness = f"{label}, run {run}: the program ended with {error!r}, and the barrier with {told!r}"
                anomalies.append(Anomaly("swallowed error" if fails else "stale error", Stage.DISPATCH, witness))
            wanted = every[:FAILING] if fails else every
            if tapped != wanted:
                witness = f"{label}, run {run}: the taps saw {tapped}, expected {wanted}"
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "call pure_callback io_callback buffer_callback dlpack_callback", "H15 X2 X3 B1 D1")
def failure_leaves_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A failed call has no results, and the operand, which the program may have lent it, is as it was."""

    def host(operand: Any) -> Any:
        raise ValueError(PLANTED)

    anomalies: list[Anomaly] = []
    for size in (64, 1 << 20):
        operand = jax.device_put(np.arange(size, dtype=np.float32) + 1)
        compiled = jax.jit(lambda x: bench.apply(callback, host, x, jax.ShapeDtypeStruct((2,), np.float32)))
        for run in range(3):
            if error_of(lambda: compiled(operand)) is None:  # noqa: B023
                anomalies.append(Anomaly("swallowed error", Stage.RESULT, f"run {run} delivered a result"))
        error_of(bench.implementation.barrier)
        anomalies += check_value(f"an operand of {size}", lambda x=operand: x, np.arange(size, dtype=np.float32) + 1)  # type: ignore[misc]
    return anomalies


LONG_ENOUGH = 0.5
"""Seconds after which a thread that would end has ended; on a slower machine the cell only misses what it asks."""


class _UnshownError(Exception):
    """An exception whose text ends the thread that wants it."""

    def __str__(self) -> str:
        raise SystemExit


@planted("jit", "id_tap", "H11 H14", functions="barrier_wait", isolated=True)
def taps_go_on_without_a_barrier(bench: Bench, callback: Callback) -> list[Anomaly]:
    """After a tap whose exception cannot be shown, later ones run by themselves, and no barrier has to run them."""
    seen: list[int] = []
    ran, ended = threading.Event(), threading.Event()
    # The next one comes at once after the first of them, and after the thread of the taps has ended after the others.
    failing = (FAILING, FAILING + 3, FAILING + 5)

    def host(operand: Any, transforms: Any) -> None:
        ran.set()
        if int(operand) in failing:
            raise _UnshownError
        seen.append(int(operand))

    compiled = jax.jit(lambda x: bench.implementation.tap(host, x))
    # The thread of the taps may say by it that it ends.
    kept, threading.excepthook = threading.excepthook, lambda *_: ended.set()
    try:
        anomalies = []
        for number in range(3 * STEPS):
            ran.clear()
            ended.clear()
            jax.block_until_ready(compiled(np.int32(number)))
            if not ran.wait(PATIENCE):
                anomalies.append(Anomaly("lost", Stage.CALLBACK, f"tap {number} did not run without a barrier"))
                break
            if number in failing[1:]:
                # An implementation whose thread goes on says nothing.
                ended.wait(LONG_ENOUGH)
        error_of(bench.implementation.barrier)
    finally:
        threading.excepthook = kept
    due = [number for number in range(3 * STEPS) if number not in failing]
    if not anomalies and seen != due:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"taps saw {seen}, expected {due}"))
    return anomalies
