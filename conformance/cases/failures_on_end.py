"""Fault cells of many failures, one after the other: what is told of each, what they keep, and what goes on."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import planted

FAILURES = 12
KEPT_FRAMES = 8
"""The last failures keep the local variables of their functions until the barrier, and the last one its callers'."""


class _Object:
    """A local variable of a function that fails, which a weak reference can watch."""


class _Watched:
    def __init__(self) -> None:
        self._references: list[weakref.ref[_Object]] = []

    def make(self) -> _Object:
        made = _Object()
        self._references.append(weakref.ref(made))
        return made

    def alive(self) -> list[int]:
        """The numbers of those that are alive, in the order in which they were made."""
        gc.collect()
        return [number for number, reference in enumerate(self._references) if reference() is not None]


@planted("jit", "id_tap", "H13 H14", functions="barrier_wait")
def older_failures_let_go(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Only the last failures keep the local variables of their functions, also those of an exception's context."""
    outer, inner = _Watched(), _Watched()

    def fail(number: int) -> None:
        local = inner.make()
        raise KeyError(number, repr(local))

    def host(operand: Any) -> Any:
        local = outer.make()
        try:
            fail(int(operand))
        except KeyError:
            raise ValueError(f"{PLANTED} {operand} {local}")  # noqa: B904 - the context is the point

    compiled = bench.applying(callback, host)
    for number in range(FAILURES):
        compiled(np.int32(number))
    # It waits, and takes no failure.
    jax.effects_barrier()
    found = {"of the functions": outer.alive(), "of the functions of their contexts": inner.alive()}
    caught: Any = error_of(bench.implementation.barrier)
    wanted = [*range(FAILURES - KEPT_FRAMES, FAILURES)]
    anomalies = [
        Anomaly("leak", Stage.CALLBACK, f"of {FAILURES} failures the local variables {whose} are kept by {kept}")
        for whose, kept in found.items()
        if kept != wanted
    ]
    if len(getattr(caught, "failures", ())) != FAILURES:
        anomalies.append(Anomaly("swallowed error", Stage.BARRIER, f"of {FAILURES} failures it told {caught!r}"))
    return anomalies + check_quiet_barrier(bench, "after failures")


@planted("jit", "call io_callback", "H13 H15", functions="barrier_wait")
def callers_are_let_go(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Only the last failure keeps the local variables of its function and of those that called the program."""
    callers, functions = _Watched(), _Watched()

    def host(operand: Any) -> Any:
        local = functions.make()
        raise ValueError(f"{PLANTED} {local}")

    compiled = bench.applying(callback, host)

    def call() -> str:
        local = callers.make()
        return f"{local} {error_of(lambda: jax.block_until_ready(compiled(bench.operand)))!r}"

    for _ in range(FAILURES):
        call()
    kept = callers.alive()
    error_of(bench.implementation.barrier)
    if kept not in ([], [FAILURES - 1]):
        return [Anomaly("leak", Stage.CALLBACK, f"of {FAILURES} failures, the callers' local variables of {kept}")]
    left = functions.alive()
    if left:
        witness = f"after the barrier has told {FAILURES} failures, their functions' local variables of {left}"
        return [Anomaly("leak", Stage.BARRIER, witness)]
    return check_quiet_barrier(bench, "after failures")


@planted("jit", "id_tap call", "H13", functions="barrier_wait")
def first_and_last_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier's text has the first line of the first failure and the last one, also of one function."""
    numbers = iter(range(3))

    def host(operand: Any) -> Any:
        raise ValueError(f"{PLANTED} {next(numbers)}")

    compiled = bench.applying(callback, host)
    for _ in range(3):
        error_of(lambda: compiled(bench.operand))
    text = str(error_of(bench.implementation.barrier))
    lacking = [number for number in (0, 2) if f"{PLANTED} {number}" not in text]
    if lacking:
        return [Anomaly("poor error", Stage.BARRIER, f"of failures 0 to 2, the text lacks {lacking}: {text}")]
    return check_quiet_barrier(bench, "after failures")


@planted("jit", "call pure_callback io_callback", "H15 X2 X3", functions="barrier_wait")
def cause_at_each_run(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The failure is the cause of the program's error at each run, also after runs without one."""
    runs = iter(range(1, 9))

    def host(operand: Any) -> Any:
        number = next(runs)
        if number > 2:
            raise ValueError(number)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    errors = [error_of(lambda: jax.block_until_ready(compiled(bench.operand))) for _ in range(6)]
    error_of(bench.implementation.barrier)
    causes = [getattr(getattr(error, "__cause__", None), "args", None) for error in errors]
    if causes != [None, None, *((number,) for number in range(3, 7))]:
        return [Anomaly("poor error", Stage.RESULT, f"the causes of six runs are {causes}")]
    return check_quiet_barrier(bench, "after failures")


@contextlib.contextmanager
def _log_that_raises() -> Iterator[None]:
    def raises(record: logging.LogRecord) -> bool:
        raise LookupError("a filter of the program's log")

    logger = logging.getLogger("hostcb")
    logger.addFilter(raises)
    try:
        yield
    finally:
        logger.removeFilter(raises)


@planted("jit", "id_tap", "H14", functions="barrier_wait")
def log_that_raises(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An exception of the program's log does not end the thread that runs taps: those after it run."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(operand))
        raise ValueError(PLANTED)

    compiled = bench.applying(callback, host)
    with _log_that_raises():
        for number in range(3):
            compiled(np.float32(number))
        caught: Any = error_of(bench.implementation.barrier)
    told = [type(failure.exception).__name__ for failure in getattr(caught, "failures", ())]
    if seen != [0.0, 1.0, 2.0] or told.count("ValueError") != 3:
        witness = f"with a log that raises, taps of {seen} ran, and the barrier told of {told}: {summary(caught)}"
        return [Anomaly("lost", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after failures")
