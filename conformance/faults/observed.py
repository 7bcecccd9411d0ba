"""Fault cells of what a program tells of its callbacks: statistics, barriers in time, the first line of errors."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, PATIENCE
from .bench import Bench
from .checks import PLANTED, check_quiet_barrier, error_of
from .fault import EVERY_EFFECT, EVERY_KIND, WITH_SIDE_EFFECT, planted
from .places import flag
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


# A process that has once asked for statistics counts to its end.
@planted("jit pmap", EVERY_EFFECT, "H29", functions="stats", isolated=True)
def is_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: the runs of each device, by kind, the bytes of their operands, failures, and barriers, as of a moment."""

    def host(operand: Any) -> Any:
        if np.asarray(operand).min() < 0:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)

    def fail() -> None:
        error_of(lambda: compiled(bench.operand - bench.operand.size))
        error_of(bench.implementation.barrier)

    # What came before the moment does not count.
    fail()
    before = library(bench).stats()
    anomalies: list[Anomaly] = []
    if before.devices:
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"the first moment has {before.devices}, expected nothing"))
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    fail()
    found = library(bench).stats() - before
    is_tap = callback.function in ("id_tap", "id_print")
    runs = RUNS + 1
    nbytes = runs * int(np.prod(bench.callback_shape)) * 4
    wanted = (runs if is_tap else 0, runs if is_tap else 0, {} if is_tap else {callback.function: runs}, nbytes, 0, 1)
    for device in bench.devices[: bench.callbacks_per_run]:
        of = found[device]
        seen = (of.taps, of.taps_run, dict(of.calls), of.bytes, of.queued, of.failures)
        if seen != wanted:
            what = "taps, those that ran, calls, bytes, queued, failures"
            witness = f"{what} of {device} are {seen}, expected {wanted}"
            anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    if found.barriers != 1 or not 0 < found.waited_in_barriers < found.seconds:
        witness = f"one barrier: {found.barriers}, for {found.waited_in_barriers} s of {found.seconds} s"
        anomalies.append(Anomaly("count", Stage.BARRIER, witness))
    return anomalies


class _HeldTap:
    """A tap's function that tells that it has begun, and waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, operand: Any, transforms: Any) -> None:
        self.entered.set()
        self.release.wait(2 * PATIENCE)


@planted("jit", "id_tap call", "H16 H29", functions="stats", isolated=True)
def inline_is_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: inline callbacks count as others do, also one that raises."""

    def host(operand: Any) -> Any:
        if np.asarray(operand) < 0:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    before = library(bench).stats()
    with flag("jax_host_callback_inline"):
        errors = [error_of(lambda n=n: bench.apply(callback, host, np.float32(n))) for n in (1, -1, 2)]  # type: ignore[misc]
    error_of(bench.implementation.barrier)
    of = (library(bench).stats() - before)[bench.devices[0]]
    taps, calls = (3, {}) if callback.function == "id_tap" else (0, {callback.function: 3})
    found, expected = (of.taps, of.taps_run, dict(of.calls), of.bytes), (taps, taps, calls, 12)
    raised = [error is not None for error in errors]
    if (raised, found) != ([False, True, False], expected):
        what = "taps, those that ran, calls, bytes"
        witness = f"of three, of which the second raises ({raised} raised), {what} are {found}, expected {expected}"
        return [Anomaly("count", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after inline callbacks")


@planted("jit", "id_tap", "H29", functions="stats", isolated=True)
def waits_are_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: how many taps wait now, how many waited at most, and their bytes, although nobody asked at that moment."""
    held = _HeldTap()
    compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
    library(bench).stats()
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    try:
        if not held.entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the first tap did not begin")]
        waiting = library(bench).stats()[bench.devices[0]]
        for _ in range(RUNS):
            jax.block_until_ready(compiled(bench.operand))
    finally:
        held.release.set()
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    ended = library(bench).stats()[bench.devices[0]]
    nbytes = bench.operand.nbytes
    found = [(of.queued, of.queued_bytes, of.most_queued, of.most_queued_bytes) for of in (waiting, ended)]
    expected = [(RUNS, RUNS * nbytes) * 2, (0, 0, 2 * RUNS, 2 * RUNS * nbytes)]
    if found != expected:
        what = "taps that wait, their bytes, at most, their bytes"
        witness = f"{what}: {found} with the first held and after the barrier, expected {expected}"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", EVERY_ONE, "H32", functions="barrier_wait")
def first_line(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: the line of a failure has the kind's name, the device, and what the function raised, wherever it is told."""

    def planted_function(operand: Any) -> Any:
        raise ValueError(f"{PLANTED}\nand more")

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
    words = (f"{callback.function}: ", f", on {bench.devices[0]}, raised ValueError: {PLANTED}")
    if not line.startswith(words[0]) or words[1] not in line:
        anomalies.append(Anomaly("poor error", Stage.BARRIER, f"the line must have {words}, is {line!r}"))
    for where, error in (("the barrier", reported), ("the computation", raised)):
        if error is not None and line not in str(error).splitlines():
            witness = f"the error of {where} lacks the line {line!r}: {summary(error)}"
            anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    return anomalies


@planted("jit", "id_tap", "H12 H29", functions="stats", isolated=True)
def later_budget(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H12: a budget that is set after the first taps is that of the next program."""
    budget, steps = 400, 1000
    release = threading.Event()
    release.set()

    def held(operand: Any, transforms: Any) -> None:
        release.wait(2 * PATIENCE)

    def loop(count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda n, _: bench.implementation.tap(held, n) * 0, 0)

    compiled = jax.jit(loop)
    compiled(3).block_until_ready()
    bench.implementation.barrier()
    library(bench).stats()
    jax.config.update("jax_host_callback_max_queue_byte_size", budget)
    release.clear()
    try:
        thread = threading.Thread(target=lambda: compiled(steps).block_until_ready(), daemon=True)
        thread.start()
        # One-sided: a slow machine can only miss the fault.
        thread.join(EARLY_SECONDS)
        release.set()
        thread.join(PATIENCE)
        anomalies = check_quiet_barrier(bench, "after the taps had ended")
    finally:
        jax.config.update("jax_host_callback_max_queue_byte_size", None)
    most = library(bench).stats()[bench.devices[0]].most_queued_bytes
    if not 0 < most <= budget:
        witness = f"with a budget of {budget} bytes, {most} waited at most"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H29", functions="stats", isolated=True)
def counted_from_the_first_look(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: taps that wait when a program asks for statistics for the first time are in them, then and later."""
    held = _HeldTap()
    compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    try:
        if not held.entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the first tap did not begin")]
        library(bench).stats()
    finally:
        held.release.set()
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    of = library(bench).stats()[bench.devices[0]]
    if (of.taps, of.taps_run, of.queued) != (RUNS, RUNS, 0):
        witness = f"taps, those that ran and queued are {(of.taps, of.taps_run, of.queued)}, expected {(RUNS, RUNS, 0)}"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_tap", "H30", functions="barrier_wait")
def all_that_wait_are_told(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H30: the error of a barrier in time counts all taps that wait, from a program and from outside jit."""
    held = _HeldTap()
    compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
    runs = 2 * RUNS
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
    counted = sum(each.count for each in getattr(error, "outstanding", ()))
    if counted != runs + 1:
        anomalies.append(Anomaly("poor error", Stage.BARRIER, f"of {runs + 1} taps the error tells of {counted}"))
    return anomalies
