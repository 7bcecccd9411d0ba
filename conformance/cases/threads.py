"""Fault cells of callbacks that block, and of programs that several threads start.

The outcome does not depend on speed. A scenario waits for each event that must happen. It holds a callback or an
operand back for some time, so that an event that must not happen has time to happen.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import EVERY_KIND, ORDERED, planted

PATIENCE = 15.0
"""Seconds after which an event that must happen counts as missing."""

ROUNDS = 5
STRIDE = 1000.0
"""A number above any operand of a bench."""

OF_THREAD = {"one": 0.0, "other": 500.0}
"""The offset of each thread's operands, so that the results of the threads differ."""


class _Started(threading.Thread):
    """A program that another thread runs, and whose result that thread fetches."""

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
        """Check the result, which must be ready now."""
        self.join(PATIENCE)
        if self.is_alive():
            return [Anomaly("stuck", Stage.RESULT, "a program never came to its end")]
        if self.error is not None:
            return [Anomaly("error", Stage.DISPATCH, f"the program of another thread failed: {summary(self.error)}")]
        return check_value("the program of another thread", lambda: self.value, wanted)


@planted("jit", EVERY_KIND)
@planted("pmap", "id_tap call io_callback")
def blocks_until_released(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback waits for an event outside the program: the process goes on meanwhile, and then the callback ends."""
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
            # XLA:CPU runs only one program over several devices at a time, with or without callbacks.
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


@planted("jit", EVERY_KIND)
@planted("pmap", "id_tap call io_callback_ordered")
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


@planted("pmap", "id_tap call io_callback_ordered debug_callback_ordered", "H5")
def order_across_threads(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One thread dispatches a program, then another thread the next one: each device runs the callbacks in order."""
    lock = threading.Lock()
    seen: dict[float, list[str]] = defaultdict(list)
    both_started = threading.Event()

    def hosting(name: str) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            # A later program has time to overtake, unless its dispatch waits for this callback.
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


OVERTAKING_SECONDS = 0.5
"""The time in which a later program could run before one that cannot run yet."""


@planted("jit", f"{ORDERED} pure_callback io_callback debug_callback", "H5 X2 X3 X4", minimum_devices=3)
def waits_for_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One thread starts a program whose operand is not ready, then another thread one on the same device.

    The operand comes from a program on other devices, which the test delays.
    """
    gate, first_started, later_ran = threading.Event(), threading.Event(), threading.Event()
    seen: list[str] = []

    def hold_up(operand: Any) -> Any:
        gate.wait(2 * PATIENCE)
        return np.asarray(operand)

    def hosting(name: str) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            seen.append(name)
            if name == "later":
                later_ran.set()
            return np.asarray(operand) + np.float32(1)

        return host

    # The dispatch of a program over several devices does not wait for its callbacks. This cell does not test JAX's own.
    others = bench.devices[1:3]
    like = jax.ShapeDtypeStruct(bench.operand.shape, np.float32)
    held_up = jax.pmap(lambda x: jax.pure_callback(hold_up, like, x), devices=others)
    programs = {name: bench.applying(callback, hosting(name)) for name in ("first", "later")}
    values = np.stack([bench.operand] * len(others))
    # Compiled beforehand: compilation takes longer than the timeouts of this scenario.
    gate.set()
    jax.block_until_ready([held_up(values), *(program(bench.operand) for program in programs.values())])
    bench.implementation.barrier()
    gate.clear()
    later_ran.clear()
    seen.clear()

    def run_first() -> Any:
        # Only in newer releases the shard of a pmap has the mapped axis.
        shard = held_up(values).addressable_shards[0].data.reshape(bench.operand.shape)
        operand = jax.device_put(shard, bench.devices[0])
        result = programs["first"](operand)
        first_started.set()
        return result

    first = _Started(run_first)
    try:
        # If the dispatch itself waits for the operand, no program can overtake.
        first_started.wait(1.0)
        later = _Started(lambda: programs["later"](bench.operand))
        later_ran.wait(OVERTAKING_SECONDS)
        in_order = first_started.is_set()
    finally:
        gate.set()
    wanted = bench.expected(callback, bench.operand)
    anomalies = [*first.check(wanted), *later.check(wanted)]
    if anomalies:
        return anomalies
    anomalies = check_quiet_barrier(bench, "after programs of two threads")
    if sorted({*seen}) != ["first", "later"]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"callbacks of {seen} ran, not of both programs"))
    elif callback.ordered and in_order and seen != ["first", "later"]:
        witness = f"callbacks ran in the order {seen}: a later program did not wait for one that waits for its operand"
        anomalies.append(Anomaly("order", Stage.CALLBACK, witness))
    return anomalies


FULL_BYTES = 4096
OPERAND_LENGTH = 1000
TAPS = 12
STALL_SECONDS = 1.0


@planted("jit", "id_tap", "H12", crosses=("queue_bytes",))
def full_queue(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A full queue makes the device wait, and the queue drops no value."""
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
        # One-sided: a device that is too slow to end its program in this time passes.
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


RUNS_ABOVE = 3


@planted("jit", "id_tap", "H12", isolated=True)
def larger_than_the_budget(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H12: a value that is larger than the queue's budget is accepted when the queue is empty, large or small."""
    seen: list[int] = []
    jax.config.update("jax_host_callback_max_queue_byte_size", 100)
    try:
        for count in (50, 1 << 19):
            operand = np.zeros(count, np.float32)
            run = jax.jit(lambda x: bench.implementation.tap(lambda value, _: seen.append(value.size), x))
            for _ in range(RUNS_ABOVE):
                jax.block_until_ready(run(operand))
                bench.implementation.tap(lambda value, _: seen.append(value.size), operand)
            bench.implementation.barrier()
    finally:
        jax.config.update("jax_host_callback_max_queue_byte_size", None)
    wanted = [50] * 2 * RUNS_ABOVE + [1 << 19] * 2 * RUNS_ABOVE
    if seen != wanted:
        return [Anomaly("lost", Stage.CALLBACK, f"the taps saw {seen} elements, expected {wanted}")]
    return check_quiet_barrier(bench, "after values larger than the budget")
