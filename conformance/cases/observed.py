"""Fault cells of what a program tells of its callbacks: barriers in time, their log, the first line of errors."""

from __future__ import annotations

import contextlib
import fractions
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.backend
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .barriers import EARLY_SECONDS, PATIENCE, HeldTap
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import EVERY_EFFECT, EVERY_KIND, WITH_SIDE_EFFECT, planted
from .traces import library

RUNS = 3
EVERY_ONE = f"{EVERY_KIND} {WITH_SIDE_EFFECT} id_print debug_callback_ordered debug_print debug_print_ordered"


@planted("jit", EVERY_EFFECT, "H30", functions="barrier_wait")
def barrier_in_time(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: a barrier with a timeout gives a held callback up and names it; the next barrier waits for it."""
    entered, release = threading.Event(), threading.Event()
    ended: list[None] = []
    errors: list[Exception | None] = []

    def host(operand: Any) -> Any:
        entered.set()
        release.wait(2 * PATIENCE)
        ended.append(None)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    # The dispatch of a call waits for it.
    thread = threading.Thread(target=lambda: errors.append(error_of(lambda: compiled(bench.operand))), daemon=True)
    thread.start()
    try:
        if not entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the callback did not begin")]
        error = error_of(lambda: library(bench).barrier_wait("planted", timeout=EARLY_SECONDS))
    finally:
        release.set()
    thread.join(PATIENCE)
    anomalies = [*check_quiet_barrier(bench, "after the callback had ended"), *_ends_in_time(bench, callback)]
    if not isinstance(error, TimeoutError):
        witness = f"a barrier of {EARLY_SECONDS} s must raise TimeoutError while a callback runs, came {error!r}"
        return [*anomalies, Anomaly("early barrier", Stage.BARRIER, witness)]
    told = [each for each in getattr(error, "outstanding", ()) if callback.function in each.name]
    if not told or bench.devices[0] not in told[0].devices or told[0].name not in str(error):
        witness = f"the error must name {callback.function} on {bench.devices[0]}: {summary(error)}"
        anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    if errors != [None] or len(ended) != 1:
        witness = f"the callback ended {len(ended)} times, and its program with {errors}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies


def _ends_in_time(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A barrier that has begun to wait when the callback ends returns, although it has a timeout."""
    entered, release = threading.Event(), threading.Event()
    errors: list[Exception | None] = []

    def host(operand: Any) -> Any:
        entered.set()
        release.wait(2 * PATIENCE)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    thread = threading.Thread(target=lambda: errors.append(error_of(lambda: compiled(bench.operand))), daemon=True)
    thread.start()
    if not entered.wait(PATIENCE):
        release.set()
        return [Anomaly("lost", Stage.CALLBACK, "the callback did not begin again")]
    with _logged(lambda message: release.set() if "start" in message else None):
        error = error_of(lambda: library(bench).barrier_wait("planted", timeout=2 * PATIENCE))
    release.set()
    thread.join(PATIENCE)
    if error is None and errors == [None]:
        return []
    witness = f"a barrier whose callback ended in time raised {error!r}, and the program {errors}"
    return [Anomaly("barrier error", Stage.BARRIER, witness)]


@contextlib.contextmanager
def _logged(tell: Callable[[str], Any]) -> Iterator[None]:
    """Call `tell` with each message in hostcb's log, of all levels."""
    logger = logging.getLogger("hostcb")
    handler = logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@planted("jit", "id_tap", "H30", functions="barrier_wait")
def refuses_a_timeout(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: a timeout that is no number, or none that a barrier can wait for, is refused and waits for nothing."""
    wanted = {True: TypeError, "1": TypeError, float("nan"): ValueError, -0.5: ValueError, -(10**400): ValueError}
    found = {given: error_of(lambda given=given: library(bench).barrier_wait(timeout=given)) for given in wanted}  # type: ignore[misc]
    anomalies = [
        Anomaly("swallowed error", Stage.BARRIER, f"a timeout of {given!r} must be a {wanted[given]}, came {error!r}")
        for given, error in found.items()
        if not isinstance(error, wanted[given])
    ]
    for given in (np.float32(9), np.int64(9), fractions.Fraction(19, 2), 10**400, float("inf"), 0):
        error = error_of(lambda given=given: library(bench).barrier_wait(timeout=given))  # type: ignore[misc]
        if error is not None:
            anomalies.append(Anomaly("error", Stage.BARRIER, f"with a timeout of {given!r:.20}: {summary(error)}"))
    return anomalies + check_quiet_barrier(bench, "after timeouts that are none")


@planted("jit", "id_tap", "H19 H30", functions="barrier_wait")
def tells_of_queued(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H19: the log of a barrier names the callbacks that wait in a queue, not only the one that runs."""
    entered, release = threading.Event(), threading.Event()
    logged: list[str] = []

    def held(operand: Any, transforms: Any) -> None:
        entered.set()
        release.wait(2 * PATIENCE)

    def queued_one(operand: Any, transforms: Any) -> None: ...

    tap = bench.implementation.tap
    jax.block_until_ready(jax.jit(lambda x: tap(queued_one, tap(held, x)))(bench.operand))
    try:
        if not entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the first tap did not begin")]
        with _logged(logged.append):
            error_of(lambda: library(bench).barrier_wait("planted", timeout=EARLY_SECONDS))
    finally:
        release.set()
    started = next((line for line in logged if "start" in line), "")
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    if "held" not in started or "queued_one" not in started or "planted" not in started:
        witness = f"the log of the barrier must name both taps: {logged}"
        anomalies.append(Anomaly("poor log", Stage.BARRIER, witness))
    return anomalies


@planted("jit", "id_tap call", "H19", functions="barrier_wait")
def end_is_logged(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H19: the log has the start and the end of each barrier by its name, also of one that reports a failure."""

    def failing(operand: Any) -> Any:
        raise ValueError(PLANTED)

    anomalies: list[Anomaly] = []
    for host in (np.asarray, failing):
        logged: list[str] = []
        error_of(lambda: jax.block_until_ready(bench.applying(callback, host)(bench.operand)))  # noqa: B023
        with _logged(logged.append):
            error = error_of(lambda: library(bench).barrier_wait("planted_name"))
        of_barrier = [line for line in logged if "barrier_wait[planted_name]" in line]
        if len(of_barrier) != 2 or (error is None) != (host is np.asarray):
            witness = f"a barrier that came to {error!r} logged {of_barrier}, expected its start and its end"
            anomalies.append(Anomaly("poor log", Stage.BARRIER, witness))
    return anomalies + check_quiet_barrier(bench, "after barriers with a log")


@planted("jit pmap pjit", "id_tap call pure_callback io_callback_ordered", "H19", functions="barrier_wait")
def logs_nothing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H19: a program whose callbacks end well writes nothing to the log but the barrier's own lines, however often."""
    compiled = bench.applying(callback, lambda operand: np.asarray(operand) + np.float32(1))
    logged: list[str] = []
    with _logged(logged.append):
        for _ in range(RUNS):
            jax.block_until_ready(compiled(bench.operand))
        library(bench).barrier_wait("planted_name")
    # On a busy machine the barrier may also report that it still waits.
    if others := [line for line in logged if "barrier_wait[planted_name]" not in line]:
        return [Anomaly("poor log", Stage.BARRIER, f"the log of programs without a failure has {others}")]
    return check_quiet_barrier(bench, "after programs without a failure")


@planted("jit", EVERY_ONE, "H32", functions="barrier_wait")
def first_line(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: the line of a failure has the kind's name, the device, and what the function raised, wherever it is told."""

    def planted_function(operand: Any) -> Any:
        # The last is half of a character, as in the name of a file that is no text.
        raise ValueError(f"{PLANTED}\u2028\x07\udce9\nand more")

    compiled = bench.applying(callback, planted_function)
    raised = error_of(lambda: jax.block_until_ready(compiled(bench.operand)))
    # A debug callback has no result to wait for.
    reported = error_of(bench.implementation.barrier)
    failures: Any = getattr(reported, "failures", ())
    lines = [str(failure.headline) for failure in failures]
    if len(lines) != 1:
        return [Anomaly("swallowed error", Stage.BARRIER, f"the barrier tells of failures {lines}, expected one")]
    (line,) = lines
    anomalies = []
    # Of all kinds, only a tap's failure lets the computation go on.
    ends = callback.function not in ("id_tap", "id_print")
    found = (bool(failures[0].ended), "has ended with this failure" in str(reported))
    if found != (ends, ends):
        witness = f"whether a computation has ended: the failure and the text say {found}, expected {ends}"
        anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    words = (f"{callback.function}: ", f", on {bench.devices[0]}, raised ValueError: {PLANTED}\\u2028\\x07\\udce9")
    if not line.startswith(words[0]) or words[1] not in line:
        anomalies.append(Anomaly("poor error", Stage.BARRIER, f"the line must have {words}, is {line!r}"))
    for where, error in (("the barrier", reported), ("the computation", raised)):
        if error is not None and line not in str(error).splitlines():
            witness = f"the error of {where} lacks the line {line!r}: {summary(error)}"
            anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    return anomalies


@planted("jit", EVERY_ONE, "H15 H32", functions="barrier_wait")
def special_ones_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H15, H32: a barrier tells of an exception that is no `Exception` by its name, as of others, at each run."""
    anomalies = []
    for exception in (KeyboardInterrupt, SystemExit, GeneratorExit):

        def raising(_: Any, exception: type[BaseException] = exception) -> Any:
            raise exception(PLANTED)

        compiled = bench.applying(callback, raising)
        for run in range(2):
            error_of(lambda: jax.block_until_ready(compiled(bench.operand)))  # noqa: B023
            failures = getattr(error_of(bench.implementation.barrier), "failures", ())
            lines = [str(failure.headline) for failure in failures]
            if len(lines) != 1 or f"raised {exception.__name__}: {PLANTED}" not in lines[0]:
                witness = f"after {exception.__name__} in run {run} the barrier told of {lines}"
                anomalies.append(Anomaly("swallowed error", Stage.BARRIER, witness))
    return anomalies


@planted("jit", "id_tap", "H30", functions="barrier_wait")
def all_that_wait_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: the error of a barrier in time tells of all taps that wait and of the one that runs, and can be pickled."""
    held = HeldTap()
    compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
    # The first runs may take another way into the queue than the later ones.
    held.release.set()
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    held.entered.clear()
    held.release.clear()
    # More than hostcb looks at in one step.
    runs = 2 * THRESHOLDS["read_ahead"].value + RUNS
    for _ in range(runs):
        jax.block_until_ready(compiled(bench.operand))
    bench.implementation.tap(held, bench.operand)
    try:
        if not held.entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the first tap did not begin")]
        error: Any = error_of(lambda: library(bench).barrier_wait("planted", timeout=EARLY_SECONDS))
    finally:
        held.release.set()
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    told = _told(error)
    if told != {"runs": 1, "waits": runs}:
        witness = f"of {runs + 1} taps, of which one runs, the error tells of {told}"
        return [*anomalies, Anomaly("poor error", Stage.BARRIER, witness)]
    again = pickle.loads(pickle.dumps(error))
    devices = {device for each in again.outstanding for device in each.devices}
    if (str(again), _told(again), devices) != (str(error), told, {str(bench.devices[0])}):
        witness = f"pickled, the error is {again!r}, tells of {_told(again)}, and of the devices {devices}"
        anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies


def _told(error: Any) -> dict[str, int]:
    """Of how many callbacks in which state an error tells."""
    counts: dict[str, int] = {}
    for each in getattr(error, "outstanding", ()):
        counts[each.state] = counts.get(each.state, 0) + each.count
    return counts


@planted("jit", "call io_callback", "H30", functions="barrier_wait")
def all_callbacks_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: of a program with two callbacks the error of a barrier in time names each; outside jit, one that runs."""
    entered, release = threading.Event(), threading.Event()

    def quick_one(operand: Any) -> Any:
        return np.asarray(operand)

    def held_one(operand: Any) -> Any:
        entered.set()
        release.wait(2 * PATIENCE)
        return np.asarray(operand)

    def program(x: Any) -> Any:
        return bench.apply(callback, held_one, bench.apply(callback, quick_one, x))

    anomalies: list[Anomaly] = []
    for way, run, names in (
        ("in jit", bench.compile(program), ("quick_one", "held_one")),
        # The first one has ended.
        ("outside jit", program, ("held_one",)),
    ):
        entered.clear()
        release.clear()
        thread = threading.Thread(target=lambda run=run: error_of(lambda: run(bench.operand)), daemon=True)
        thread.start()
        entered.wait(PATIENCE)
        try:
            error = error_of(lambda: library(bench).barrier_wait(timeout=EARLY_SECONDS))
        finally:
            release.set()
        thread.join(PATIENCE)
        anomalies += check_quiet_barrier(bench, f"after two callbacks {way}")
        lacking = [name for name in names if name not in str(error)]
        if lacking:
            anomalies.append(Anomaly("poor error", Stage.BARRIER, f"{way}, the error lacks {lacking}: {error!r}"))
    return anomalies


@planted("pmap", "call io_callback", "H30", minimum_devices=2, functions="barrier_wait")
def all_devices_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: the error of a barrier in time names each device of the program that it waits for."""
    release = threading.Event()

    def held(operand: Any) -> Any:
        release.wait(2 * PATIENCE)
        return np.asarray(operand) + np.float32(1)

    result = bench.applying(callback, held)(bench.operand)
    try:
        error: Any = error_of(lambda: library(bench).barrier_wait(timeout=EARLY_SECONDS))
    finally:
        release.set()
    jax.block_until_ready(result)
    anomalies = check_quiet_barrier(bench, "after a program of all devices")
    told = max((each.devices for each in getattr(error, "outstanding", ())), key=len, default=())
    if {*map(str, told)} != {*map(str, bench.devices)}:
        witness = f"the error of a program on {bench.devices} tells of {told}: {error!r}"
        anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies
