"""Fault cells of a program on some of the devices on which an earlier one still runs, and of what waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import PATIENCE
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import SLOWEST, planted
from .traces import library

ROUNDS = 4
WHILE = 0.2
"""Seconds for what must not come."""


@planted("pmap", "call io_callback_ordered", "H5 X3", minimum_devices=2)
def one_of_its_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program on the last device of an earlier one, whose callback there still runs, begins after it."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    last = float(bench.operand[-1][0])
    seen: list[str] = []
    early = threading.Event()

    def slow(operand: Any) -> Any:
        if float(np.asarray(operand).ravel()[0]) == last:
            early.wait(WHILE)
            seen.append("on both")
        return np.asarray(operand)

    def quick(operand: Any) -> Any:
        seen.append("on one")
        early.set()
        return np.asarray(operand)

    on_both = bench.applying(callback, slow)
    on_one = jax.jit(lambda x: bench.apply(callback, quick, x))
    placed = jax.device_put(bench.operand[-1], bench.devices[-1])
    for compiled, operand in ((on_both, bench.operand), (on_one, placed)):
        # An implementation may take another way from the second run on.
        early.set()
        for _ in range(2):
            jax.block_until_ready(compiled(operand))
    anomalies = check_quiet_barrier(bench, "after the first programs")
    for _ in range(ROUNDS):
        seen.clear()
        early.clear()
        results = [on_both(bench.operand), on_one(placed)]
        jax.block_until_ready(results)
        if seen != ["on both", "on one"]:
            return [Anomaly("order", Stage.CALLBACK, f"the callbacks on the last device ran as {seen}")]
    return anomalies + check_quiet_barrier(bench, "after programs on both devices and on one")


def _takes_a_while(x: Any) -> Any:
    """A program without callbacks, whose dispatch returns before its result is there."""
    return jax.lax.fori_loop(0, 40, lambda _, carry: jnp.tanh(carry @ carry), jnp.full((400, 400), x[0]))[0, 0] * 0 + x


@planted("pmap", "id_tap call io_callback_ordered", "H5 X3", minimum_devices=2)
def all_after_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program on both devices begins after an earlier one on the last of them, which waits for its operand."""
    bench = Bench(bench.implementation, bench.layout, bench.devices[:2])
    last = float(bench.operand[-1][0])
    seen: list[str] = []

    def noting(name: str) -> Callable[[Any], Any]:
        def note(operand: Any) -> Any:
            if float(np.asarray(operand).ravel()[0]) == last:
                seen.append(name)
            return np.asarray(operand)

        return note

    on_both, on_one = bench.applying(callback, noting("on both")), noting("on one")
    program = jax.jit(lambda x: bench.apply(callback, on_one, x))
    before = jax.jit(_takes_a_while)
    placed = jax.device_put(bench.operand[-1], bench.devices[-1])
    for _ in range(2):
        jax.block_until_ready([on_both(bench.operand), program(before(placed))])
    anomalies = check_quiet_barrier(bench, "after the first programs")
    for _ in range(ROUNDS):
        seen.clear()
        results = [program(before(placed)), on_both(bench.operand)]
        jax.block_until_ready(results)
        anomalies += check_quiet_barrier(bench, "after programs on one device and on both")
        if seen != ["on one", "on both"]:
            return [*anomalies, Anomaly("order", Stage.CALLBACK, f"the callbacks on the last device ran as {seen}")]
    return anomalies


@planted("pmap", "id_tap call", "H5", minimum_devices=2)
def outside_jit_after_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback outside jit, on the last device, runs after that of an earlier program that still runs there."""
    early, seen, compiled, last = _held_up_on_the_last(bench, callback)

    def quick(operand: Any) -> Any:
        seen.append("outside jit")
        early.set()
        return np.asarray(operand)

    placed = jax.device_put(last, bench.devices[-1])
    early.set()
    jax.block_until_ready([compiled(bench.operand), bench.apply(callback, quick, placed)])
    anomalies = check_quiet_barrier(bench, "after the first callbacks")
    for _ in range(ROUNDS):
        seen.clear()
        early.clear()
        jax.block_until_ready([compiled(bench.operand), bench.apply(callback, quick, placed)])
        anomalies += check_quiet_barrier(bench, "after the callbacks")
        if seen != ["in a program", "outside jit"]:
            return [*anomalies, Anomaly("order", Stage.CALLBACK, f"the callbacks on the last device ran as {seen}")]
    return anomalies


@planted("pmap", "id_tap", "H13", minimum_devices=2)
def jaxs_barrier_covers_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """`jax.effects_barrier` waits for the taps on all devices of a program, also where the last device is late."""
    _, seen, compiled, _ = _held_up_on_the_last(bench, callback)
    for _ in range(2):
        jax.block_until_ready(compiled(bench.operand))
    anomalies = check_quiet_barrier(bench, "after the first programs")
    seen.clear()
    result = compiled(bench.operand)
    jax.effects_barrier()
    in_time = [*seen]
    jax.block_until_ready(result)
    anomalies += check_quiet_barrier(bench, "after the program")
    if in_time != ["in a program"]:
        witness = f"jax.effects_barrier returned after {in_time}, and then came {seen[len(in_time) :]}"
        anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    return anomalies


def _held_up_on_the_last(
    bench: Bench, callback: Callback
) -> tuple[threading.Event, list[str], Callable[[Any], Any], Any]:
    """A program on all devices whose callback on the last one comes late: after the event, or after a while."""
    last = bench.operand[-1]
    early = threading.Event()
    seen: list[str] = []

    def is_last(operand: Any) -> bool:
        return float(np.asarray(operand).ravel()[0]) == float(last[0])

    def wait(operand: Any) -> Any:
        if is_last(operand):
            early.wait(WHILE)
        return np.asarray(operand)

    def note(operand: Any) -> Any:
        if is_last(operand):
            seen.append("in a program")
        return np.asarray(operand)

    def computation(x: Any) -> Any:
        # The device waits for this one, so the other has not been handed over before it ends.
        held = bench.implementation.call(wait, x, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return bench.apply(callback, note, held)

    return early, seen, bench.compile(computation), last


@planted("pmap", "id_tap", "H13", minimum_devices=2)
def started_in_turn(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier waits for the callbacks of a program that a tap has started, and that nobody else waits for."""
    _, seen, inner, _ = _held_up_on_the_last(bench, callback)
    jax.block_until_ready(inner(bench.operand))
    bench.implementation.barrier()
    started: list[Any] = []

    def starts(operand: Any, transforms: Any) -> None:
        # Nobody waits for its results.
        started.append(inner(bench.operand))

    outer = jax.jit(lambda x: bench.implementation.tap(starts, x))
    anomalies: list[Anomaly] = []
    for _ in range(2):
        seen.clear()
        jax.block_until_ready(outer(np.float32(1)))
        bench.implementation.barrier()
        in_time = [*seen]
        jax.block_until_ready(started)
        anomalies += check_quiet_barrier(bench, "after programs that a tap had started")
        if in_time != ["in a program"]:
            witness = f"the barrier returned after {in_time}, and then came {seen[len(in_time) :]}"
            anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    return anomalies


# The queue of the taps must be an earlier one than that of the tap that starts their program.
@planted("pjit", "id_tap", "H13", minimum_devices=3, isolated=True)
def started_in_turn_by_two(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier waits for the tap of a program that a tap started, also if another thread starts the same program."""
    rows = NamedSharding(Mesh(np.asarray(bench.devices[1:3]), ("devices",)), PartitionSpec("devices"))
    operands = [jax.device_put(np.full(2, number, np.float32), rows) for number in range(3)]
    outside = jax.device_put(np.float32(0), bench.devices[0])
    seen: list[float] = []
    never, runs, both, ended, release = (threading.Event() for _ in range(5))

    def held(operand: Any) -> Any:
        runs.set()
        both.wait(PATIENCE)
        return np.asarray(operand)

    def note(operand: Any, transforms: Any) -> None:
        release.wait(PATIENCE)
        seen.append(float(np.asarray(operand)[0]))

    def starts(operand: Any, transforms: Any) -> None:
        # Until the barrier waits.
        never.wait(WHILE)
        jax.block_until_ready(inner(operands[1]))
        ended.set()

    def computation(x: Any) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return bench.implementation.tap(note, bench.implementation.call(held, x, like))

    def other() -> None:
        runs.wait(PATIENCE)
        result = inner(operands[2])
        both.set()
        jax.block_until_ready(result)

    def wait_at_a_barrier() -> None:
        library(bench).barrier_wait()
        in_time.extend(seen)

    inner = jax.jit(computation)
    both.set()
    release.set()
    jax.block_until_ready(inner(operands[0]))
    bench.implementation.barrier()
    anomalies: list[Anomaly] = []
    for _ in range(ROUNDS):
        for event in (runs, both, ended, release):
            event.clear()
        seen.clear()
        in_time: list[float] = []
        threads = [threading.Thread(target=each, daemon=True) for each in (other, wait_at_a_barrier)]
        threads[0].start()
        bench.implementation.tap(starts, outside)
        threads[1].start()
        ended.wait(PATIENCE)
        # One-sided: a barrier that does not wait returns meanwhile.
        threads[1].join(WHILE)
        release.set()
        for thread in threads:
            thread.join(PATIENCE)
        anomalies += check_quiet_barrier(bench, "after a program of two threads")
        if 1.0 not in in_time or sorted(seen) != [1.0, 2.0]:
            witness = f"the barrier returned after taps of {in_time}, and {seen} came, expected that of 1.0 in time"
            return [*anomalies, Anomaly("early barrier", Stage.BARRIER, witness)]
    return anomalies


@planted("pjit", "id_tap call", "H12 H13", minimum_devices=2, isolated=True, deadline=SLOWEST)
def started_by_two_on_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program that a tap starts on the tap's own device, as another thread does, does not wait for this tap."""
    rows = NamedSharding(Mesh(np.asarray(bench.devices[:2]), ("devices",)), PartitionSpec("devices"))
    operands = [jax.device_put(np.full(100, number, np.float32), rows) for number in range(3)]
    like = jax.ShapeDtypeStruct((100,), np.float32)
    seen: list[float] = []
    runs, both = threading.Event(), threading.Event()

    def held(operand: Any) -> Any:
        runs.set()
        both.wait(PATIENCE)
        return np.asarray(operand)

    def note(operand: Any) -> Any:
        seen.append(float(np.asarray(operand)[0]))
        return np.asarray(operand)

    def starts(operand: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(operands[1]))

    def other() -> None:
        runs.wait(PATIENCE)
        result = inner(operands[2])
        both.set()
        jax.block_until_ready(result)

    inner = jax.jit(lambda x: bench.apply(callback, note, library(bench).pure_callback(held, like, x), like))
    both.set()
    jax.block_until_ready(inner(operands[0]))
    bench.implementation.barrier()
    # The tap that starts the program fills the queue.
    jax.config.update("jax_host_callback_max_queue_byte_size", 100)
    both.clear()
    runs.clear()
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    bench.implementation.tap(starts, jax.device_put(np.float32(0), bench.devices[0]))
    anomalies = check_quiet_barrier(bench, "after a program of two threads")
    thread.join(PATIENCE)
    anomalies += check_quiet_barrier(bench, "after the program of the other one")
    if sorted(seen) != [0.0, 1.0, 2.0]:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"three runs of the program called back for {seen}"))
    return anomalies


@planted("pjit", "call", "H5 H10", minimum_devices=4)
def on_two_meshes_at_once(bench: Bench, callback: Callback) -> list[Anomaly]:
    """While one run of a program waits, another one starts on other devices: each is told a device of its own."""
    started = threading.Event()
    callers: list[tuple[float, Any]] = []

    def wait(operand: Any) -> Any:
        started.wait(WHILE)
        return np.asarray(operand)

    def note(operand: Any, device: Any) -> Any:
        callers.append((float(np.asarray(operand)[0]), device))
        return np.asarray(operand)

    def computation(x: Any) -> Any:
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = library(bench).call(wait, x, result_shape=like)
        return library(bench).call(note, x, result_shape=like, call_with_device=True)

    compiled = jax.jit(computation)
    pairs = bench.devices[:2], bench.devices[2:4]
    operands = []
    for number, pair in enumerate(pairs):
        rows = NamedSharding(Mesh(np.asarray(pair), ("devices",)), PartitionSpec("devices"))
        operands.append(jax.device_put(np.full(2, number, np.float32), rows))
    wanted = [(float(number), pair[0]) for number, pair in enumerate(pairs)]
    anomalies: list[Anomaly] = []
    for _ in range(ROUNDS):
        callers.clear()
        started.clear()
        results = [compiled(operand) for operand in operands]
        started.set()
        jax.block_until_ready(results)
        anomalies += check_quiet_barrier(bench, "after runs on two meshes")
        if sorted(callers, key=lambda each: each[0]) != wanted:
            witness = f"runs on {pairs} were told the devices {callers}, expected {wanted}"
            return [*anomalies, Anomaly("wrong device", Stage.CALLBACK, witness)]
    return anomalies
