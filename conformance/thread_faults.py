"""Fault cells of callbacks that block, and of programs that several threads start.

Nothing here depends on how fast anything is: what must happen is waited for, and what must not has its whole
chance while it is held up.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from conformance.bench import Bench
from conformance.callbacks import Callback, Runs
from conformance.checkers import Anomaly
from conformance.execution import summary
from conformance.fault_checks import check_quiet_barrier, check_value
from conformance.verdicts import Stage

PATIENCE = 15.0
"""Seconds after which what should have happened will not."""

ROUNDS = 5
STRIDE = 1000.0
"""More than any operand of a bench."""

OF_THREAD = {"one": 0.0, "other": 500.0}
"""What the operands of a thread are moved by, so that its results are nobody else's."""


class _Started(threading.Thread):
    """A program that another thread runs and fetches the result of."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.run_it = run
        self.value: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = np.asarray(self.run_it())
        except Exception as error:
            self.error = error

    def check(self, wanted: Any) -> list[Anomaly]:
        """Its result, which must be there by now."""
        self.join(PATIENCE)
        if self.is_alive():
            return [Anomaly("stuck", Stage.RESULT, "a program never came to its end")]
        if self.error is not None:
            return [Anomaly("error", Stage.DISPATCH, f"the program of another thread failed: {summary(self.error)}")]
        return check_value("the program of another thread", lambda: self.value, wanted)


def blocks_until_released(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback waits for something that happens outside: the rest of the process goes on, and then it does, too."""
    entered, release = threading.Event(), threading.Event()
    released: list[bool] = []

    def host(operand: Any) -> Any:
        entered.set()
        released.append(release.wait(2 * PATIENCE))
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(callback, host)
    alone = jax.jit(lambda x: x * 2)
    anomalies = check_value("a program without callbacks", lambda: alone(bench.operand), bench.operand * 2)
    started = _Started(lambda: compiled(bench.operand))
    try:
        if not entered.wait(PATIENCE):
            return [*anomalies, Anomaly("lost", Stage.CALLBACK, "the callback did not begin")]
        if bench.layout == "jit":
            # On several devices at a time XLA:CPU runs one program, with callbacks or without.
            label = "a program beside a blocked callback"
            anomalies += check_value(label, lambda: alone(bench.operand), bench.operand * 2)
        if callback.function == "id_tap":
            started.join(PATIENCE)
            if started.is_alive():
                anomalies.append(Anomaly("waits", Stage.RESULT, "the device waits for the function of a tap"))
    finally:
        release.set()
    anomalies += started.check(bench.expected(callback, bench.operand))
    anomalies += check_quiet_barrier(bench, "after callbacks that were held up")
    if released != [True] * bench.callbacks_per_run:
        witness = f"{len(released)} callbacks ended, expected {bench.callbacks_per_run}"
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, witness))
    return anomalies


def two_threads(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Two threads start programs at once: each gets its own results, and its callbacks in its own order."""
    lock = threading.Lock()
    seen: dict[tuple[str, float], list[float]] = defaultdict(list)

    def hosting(name: str) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            first = float(np.asarray(operand).ravel()[0]) - OF_THREAD[name]
            with lock:
                seen[name, first % STRIDE].append(first // STRIDE)
            return np.asarray(operand) + np.float32(1)

        return host

    programs = {name: bench.applying(callback, hosting(name)) for name in OF_THREAD}
    together = threading.Barrier(len(programs))
    anomalies: list[Anomaly] = []

    def run(name: str) -> None:
        together.wait(PATIENCE)
        for number in range(ROUNDS):
            operand = bench.operand + np.float32(STRIDE * number + OF_THREAD[name])
            wanted = bench.expected(callback, operand)
            anomalies.extend(check_value(f"{name}, {number}", lambda o=operand: programs[name](o), wanted))  # type: ignore[misc]

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        if thread.is_alive():
            return [Anomaly("stuck", Stage.RESULT, "one of two threads never came to its end")]
    anomalies += check_quiet_barrier(bench, "after programs of two threads")
    return anomalies[:1] or _check_each_thread(bench, callback, seen)


def _check_each_thread(bench: Bench, callback: Callback, seen: dict[tuple[str, float], list[float]]) -> list[Anomaly]:
    rows = [float(row.ravel()[0]) for row in bench.operand] if bench.callbacks_per_run > 1 else [0.0]
    wanted = [float(number) for number in range(ROUNDS)]
    for name in OF_THREAD:
        for row in rows:
            numbers = seen[name, row]
            where = f"on the device of row {row:.0f} thread {name} called back for {numbers}, expected {wanted}"
            once = sorted(numbers) == wanted or (callback.runs is Runs.IF_NEEDED and {*numbers} == {*wanted})
            if not once:
                return [Anomaly("wrong count", Stage.CALLBACK, where)]
            if callback.ordered and numbers != wanted:
                return [Anomaly("order", Stage.CALLBACK, where)]
    return []


def order_across_threads(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One thread dispatches a program, and another thread then the next: on each device callbacks come in order."""
    lock = threading.Lock()
    seen: dict[float, list[str]] = defaultdict(list)
    both_started = threading.Event()

    def hosting(name: str) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            # Gives a later program the chance to overtake. Where its dispatch waits for this callback it has none.
            both_started.wait(1.0)
            with lock:
                seen[float(np.asarray(operand).ravel()[0])].append(name)
            return np.asarray(operand) + np.float32(1)

        return host

    programs = {name: bench.applying(callback, hosting(name)) for name in ("first", "second")}
    results: list[Any] = []
    for program in programs.values():
        thread = threading.Thread(target=lambda p=program: results.append(p(bench.operand)), daemon=True)
        thread.start()
        thread.join(PATIENCE)
    both_started.set()
    anomalies = []
    for result in results:
        wanted = bench.expected(callback, bench.operand)
        anomalies += check_value("a program of another thread", lambda r=result: r, wanted)  # type: ignore[misc]
    anomalies += check_quiet_barrier(bench, "after programs of two threads")
    wrong = {row: names for row, names in sorted(seen.items()) if names != ["first", "second"]}
    if wrong or len(seen) != bench.callbacks_per_run:
        witness = f"callbacks by the first number of their operand: {wrong or dict(seen)}"
        anomalies.append(Anomaly("order", Stage.CALLBACK, witness))
    return anomalies


FULL_BYTES = 4096
OPERAND_LENGTH = 1000
TAPS = 12
STALL_SECONDS = 1.0


def full_queue(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A full queue makes the device wait, and nothing that was handed over is dropped."""
    gate, done = threading.Event(), threading.Event()
    seen: list[float] = []

    def host(operand: Any, transforms: Any) -> None:
        gate.wait(2 * PATIENCE)
        seen.append(float(operand[0]))

    def computation(x: Any) -> Any:
        return jax.lax.fori_loop(0, TAPS, lambda _, carry: bench.implementation.tap(host, carry) + 1, x)

    compiled = bench.compile(computation)
    with bench.implementation.queue_of(FULL_BYTES):

        def run() -> Any:
            value = np.asarray(compiled(np.zeros(OPERAND_LENGTH, np.float32)))
            done.set()
            return value

        started = _Started(run)
        # One-sided: a device that is too slow to come to the end of its program in this time is not accused.
        ran_on = done.wait(STALL_SECONDS)
        gate.set()
        anomalies = started.check(np.full(OPERAND_LENGTH, TAPS, np.float32))
        anomalies += check_quiet_barrier(bench, "after a full queue")
    if ran_on:
        witness = f"the device handed over {TAPS} values of {4 * OPERAND_LENGTH} bytes to a queue of {FULL_BYTES}"
        anomalies.append(Anomaly("unbounded", Stage.RESULT, witness))
    if seen != [float(number) for number in range(TAPS)]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"after a full queue the tap had seen {seen}"))
    return anomalies
