"""Fault cells of statistics: what ran, what waits, what waited at most, and how it failed, as of a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from .harness.checks import PLANTED, check_quiet_barrier, error_of, flag
from .harness.registry import EVERY_EFFECT, WITH_RESULTS, planted
from .traces import library

RUNS = 3


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
    first = library(bench).stats()
    anomalies: list[Anomaly] = []
    if first.devices or first.barriers or first.waited_in_barriers:
        waited = f"{first.barriers} barriers, for {first.waited_in_barriers} s"
        witness = f"the first moment has {first.devices} and {waited}, expected nothing"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    fail()
    before = library(bench).stats()
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
    held = HeldTap()
    compiled = jax.jit(lambda x: bench.implementation.tap(held, x))
    library(bench).stats()
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    try:
        if not held.entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the first tap did not begin")]
        waiting = library(bench).stats()[bench.devices[0]]
        gave_up = error_of(lambda: library(bench).barrier_wait(timeout=EARLY_SECONDS))
        for _ in range(RUNS):
            jax.block_until_ready(compiled(bench.operand))
    finally:
        held.release.set()
    anomalies = check_quiet_barrier(bench, "after the taps had ended")
    moment = library(bench).stats()
    ended, nbytes = moment[bench.devices[0]], bench.operand.nbytes
    if not isinstance(gave_up, TimeoutError) or moment.barriers != 2 or moment.waited_in_barriers < EARLY_SECONDS:
        witness = (
            f"a barrier that ended with {gave_up!r}, and another: {moment.barriers}, {moment.waited_in_barriers} s"
        )
        anomalies.append(Anomaly("count", Stage.BARRIER, witness))
    found = [(of.queued, of.queued_bytes, of.most_queued, of.most_queued_bytes) for of in (waiting, ended)]
    expected = [(RUNS, RUNS * nbytes) * 2, (0, 0, 2 * RUNS, 2 * RUNS * nbytes)]
    if found != expected:
        what = "taps that wait, their bytes, at most, their bytes"
        witness = f"{what}: {found} with the first held and after the barrier, expected {expected}"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
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


@planted("jit", "id_tap", "H12 H29", functions="stats", isolated=True)
def budget_of_small_types(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H12: an element of less than a byte takes a whole one in the queue: no more values wait than have room."""
    elements, most = 100, 4
    steps = 3 * most
    anomalies: list[Anomaly] = []
    library(bench).stats()
    for name in ("bool", "int4", "float4_e2m1fn"):
        held = HeldTap()

        def loop(x: Any, held: HeldTap = held) -> Any:
            return jax.lax.fori_loop(0, steps, lambda _, y: bench.implementation.tap(held, y), x)

        def in_turn(x: Any, held: HeldTap = held) -> Any:
            for _ in range(steps):
                x = bench.implementation.tap(held, x)
            return x

        operand = jnp.zeros(elements, np.dtype(getattr(jnp, name, name)))
        # The first value of each call site may go another way than later ones.
        for way, program, warm in (("first values", in_turn, False), ("later values", loop, True)):
            compiled = jax.jit(program).lower(operand).compile()
            held.release.set()
            if warm:
                jax.block_until_ready(compiled(operand))
            bench.implementation.barrier()
            waiting, ran = _waiting_with_budget(bench, held, lambda run=compiled, x=operand: run(x), most * elements)  # type: ignore[misc]
            anomalies += check_quiet_barrier(bench, f"after taps of {name}")
            if waiting > most or ran != steps:
                witness = f"{way} of {name}: {waiting} of {elements} bytes waited in {most * elements}, and {ran} ran"
                anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


def _waiting_with_budget(bench: Bench, held: HeldTap, run: Callable[[], Any], budget: int) -> tuple[int, int]:
    """How many taps of a program wait while the first one is held, and how many it has."""
    before = library(bench).stats()[bench.devices[0]].taps
    jax.config.update("jax_host_callback_max_queue_byte_size", budget)
    held.release.clear()
    held.entered.clear()
    thread = threading.Thread(target=lambda: jax.block_until_ready(run()), daemon=True)
    try:
        thread.start()
        held.entered.wait(PATIENCE)
        # One-sided: on a slow machine fewer values wait.
        thread.join(EARLY_SECONDS)
        waiting = library(bench).stats()[bench.devices[0]].queued
    finally:
        held.release.set()
        thread.join(PATIENCE)
        jax.config.update("jax_host_callback_max_queue_byte_size", None)
    bench.implementation.barrier()
    return waiting, library(bench).stats()[bench.devices[0]].taps - before


@planted("jit", "id_tap", "H29", functions="stats", isolated=True)
def counted_from_the_first_look(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: taps that wait when a program asks for statistics for the first time are in them, then and later."""
    held = HeldTap()
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
    found, wanted = (of.taps, of.taps_run, of.bytes, of.queued), (RUNS, RUNS, RUNS * bench.operand.nbytes, 0)
    if found != wanted:
        witness = f"taps, those that ran, their bytes and queued are {found}, expected {wanted}"
        anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
    return anomalies


@planted("jit pmap", f"{WITH_RESULTS} buffer_callback dlpack_callback", "H29", functions="stats", isolated=True)
def calls_alone_are_counted(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: a device that has made calls, and has neither tapped nor failed, is in the statistics."""
    compiled = bench.applying(callback, lambda operand: np.asarray(operand) + np.float32(1))
    first = library(bench).stats()
    for _ in range(RUNS):
        jax.block_until_ready(compiled(bench.operand))
    anomalies = check_quiet_barrier(bench, "after calls")
    found = {name: dict(of.calls) for name, of in (library(bench).stats() - first).devices.items()}
    devices = bench.devices[: bench.callbacks_per_run]
    wanted = {f"{device.platform}:{device.id}": {callback.function: RUNS} for device in devices}
    if found != wanted:
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"the calls of devices are {found}, expected {wanted}"))
    return anomalies


@planted("jit", "id_tap", "H29", functions="stats", isolated=True)
def shown_in_a_table(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: the table has for each device how many taps were handed over and ran, all calls, and failures."""
    hostcb = library(bench)
    like = jax.ShapeDtypeStruct((), np.float32)

    def fail(operand: Any) -> Any:
        raise ValueError(PLANTED)

    def program(x: Any) -> Any:
        for _ in range(2):
            x = bench.implementation.tap(lambda *_: None, x)
            x = hostcb.io_callback(lambda operand: operand, like, x, ordered=True)
            x = hostcb.call(lambda operand: operand, x, result_shape=like)
        return x

    compiled, failing = jax.jit(program), jax.jit(lambda x: hostcb.call(fail, x, result_shape=like))
    before = hostcb.stats()
    for number in range(RUNS):
        jax.block_until_ready(compiled(np.float32(number)))
    error_of(lambda: jax.block_until_ready(failing(np.float32(1))))
    error_of(bench.implementation.barrier)
    table = str(hostcb.stats() - before)
    device = bench.devices[0]
    (row,) = (line.split() for line in table.splitlines() if line.startswith(f"{device.platform}:{device.id} "))
    # The columns between these have units.
    found, wanted = (*row[1:4], row[-1]), (*map(str, (2 * RUNS, 2 * RUNS, 4 * RUNS + 1)), "1")
    anomalies: list[Anomaly] = []
    if found != wanted:
        witness = f"the table has the taps, those that ran, the calls and the failures {found}, expected {wanted}"
        anomalies.append(Anomaly("count", Stage.CALLBACK, f"{witness}: {table}"))
    for words in (f"{2 * RUNS} x io_callback", f"{2 * RUNS + 1} x call"):
        if words not in table:
            anomalies.append(Anomaly("count", Stage.CALLBACK, f"the table has no {words!r}: {table}"))
    return anomalies


@planted("jit", "id_tap", "H29", functions="stats", isolated=True)
def counted_inside_and_after_clearing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H29: taps from inside of a tap count as those that ran, and the counts stay when the backends are cleared."""
    counted = library(bench).stats()

    def inner(operand: Any, transforms: Any) -> None: ...

    def outer(operand: Any, transforms: Any) -> None:
        bench.implementation.tap(inner, np.float32(1))
        nested(np.float32(2))

    nested = jax.jit(lambda x: bench.implementation.tap(inner, x))
    compiled = jax.jit(lambda x: bench.implementation.tap(outer, x))
    anomalies: list[Anomaly] = []
    for round_number in range(1, 3):
        for number in range(RUNS):
            jax.block_until_ready(compiled(np.float32(number)))
        anomalies += check_quiet_barrier(bench, "after taps from inside of taps")
        found = (library(bench).stats() - counted).devices
        totals = [(of.taps, of.taps_run, of.queued, of.bytes) for of in found.values()]
        wanted = 3 * RUNS * round_number
        if totals != [(wanted, wanted, 0, 4 * wanted)]:
            when = "after the backends were cleared" if round_number == 2 else "at first"
            witness = f"{when}, taps, those that ran, queued, and bytes are {totals}, expected {wanted} that ran"
            anomalies.append(Anomaly("count", Stage.CALLBACK, witness))
        jax.extend.backend.clear_backends()
    return anomalies
