"""Barriers wait for the callbacks of earlier programs, also if one device is held up: hostcb's own and that of JAX."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.thresholds import GENERATIONS, around
from ..harness.case import BEGINS_WITHIN, Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_EFFECT

EARLY_SECONDS = 0.1
"""The time in which a barrier may return too early. It is one-sided: a slow machine can only miss the case."""


def _check_covers(case: Case, barrier: Callable[[], None], again: bool = False) -> None:
    """Another thread starts a program and waits at the barrier, while the callback is held.

    `again` asks the second run of a program, for which there may be another way, on its last device alone.
    """
    entered, release, passed = threading.Event(), threading.Event(), threading.Event()
    ended: list[None] = []
    in_time: list[int] = []

    def answer(operand: Any) -> Any:
        if not again or np.asarray(operand).ravel()[-1] == case.operand.ravel()[-1]:
            entered.set()
            release.wait(2 * BEGINS_WITHIN)
        ended.append(None)
        return add_one(operand)

    program = case.program(answer)
    if again:
        release.set()
        program(case.operand)
        case.barrier()
        entered.clear()
        release.clear()
        ended.clear()

    def run() -> None:
        program(case.operand)
        barrier()
        in_time.append(len(ended))
        passed.set()

    with case.in_thread(run):
        case.check(entered.wait(BEGINS_WITHIN), "lost", Stage.CALLBACK, "the callback did not begin")
        passed.wait(EARLY_SECONDS)
        release.set()
    case.same("early barrier", Stage.BARRIER, in_time, [case.copies], "callbacks that had ended when it returned")


@case("jit", EVERY_EFFECT, "H13")
@case("pmap", "id_tap call io_callback", "H13")
def barrier_covers(case: Case) -> None:
    """A barrier does not return before a callback that waits for an event has ended, in a program of another thread."""
    _check_covers(case, case.implementation.barrier)
    _check_covers(case, case.implementation.barrier, again=True)


@case("jit", "id_tap debug_callback", "H13")
@case("pmap", "id_tap", "H13")
def jaxs_barrier_covers(case: Case) -> None:
    """H13: JAX's own barrier waits for such a callback as well, also after a program of JAX's own callbacks."""
    own = jax.jit(lambda x: (jax.debug.callback(lambda _: None, x), x)[1])

    def after_another() -> None:
        own(np.float32(1))
        jax.effects_barrier()

    _check_covers(case, jax.effects_barrier)
    _check_covers(case, jax.effects_barrier, again=True)
    _check_covers(case, after_another)


@case("jit", "id_tap call io_callback", "H13")
def generations(case: Case) -> None:
    """A callback starts a program whose callback starts another, and so on; one barrier waits for all of them."""
    most = max(around(GENERATIONS))

    def hosting(generation: int) -> Callable[[Any], Any]:
        def answer(operand: Any) -> Any:
            if generation:
                np.asarray(programs[generation - 1](np.asarray(operand)))
            return add_one(operand)

        return case.host(answer, name=str(generation))

    # JAX refuses a program that starts itself.
    programs = [case.program(hosting(generation)) for generation in range(most)]
    for depth in around(GENERATIONS):
        case.forget()
        case.gives(case.expected, programs[depth - 1], case.operand)
        case.barrier()
        case.same("early barrier", Stage.BARRIER, len(case.events), depth, "callbacks that ended")


RUNS = 2


@case("pmap shard_map", "call io_callback_ordered", "H5 H13", minimum_devices=2, functions="barrier_wait")
def goes_on_beside_a_slow_device(case: Case) -> None:
    """H5: what comes on a device after a program waits for that device alone, and JAX's barrier for its own thread."""
    case = case.over(case.devices[:2])
    release = threading.Event()
    late: list[str] = []
    way = ""

    def held(operand: Any) -> Any:
        # The program of another thread is held up on both devices.
        slow = way.startswith("JAX") or np.ravel(operand)[0] > 0
        if slow and not release.wait(BEGINS_WITHIN):
            late.append(way)
        return np.asarray(operand)

    program = case.program(held)
    first = jax.device_put(np.float32(0), case.devices[0])
    tap = case.implementation.tap
    releasing = jax.jit(lambda x: tap(lambda *_: release.set(), x))
    beside = jax.jit(lambda x: tap(lambda *_: None, x))

    def then(run: Callable[[Any], Any]) -> list[Any]:
        return [program(case.operand), run(first)]

    def in_another_thread() -> list[Any]:
        results = [beside(first)]
        thread = threading.Thread(target=lambda: results.append(program(case.operand)))
        thread.start()
        thread.join()
        # What this thread has started is `beside` alone.
        jax.effects_barrier()
        release.set()
        return results

    for way, run in (
        ("a program", lambda: then(releasing)),
        ("a tap outside jit", lambda: then(lambda x: tap(lambda *_: release.set(), x))),
        ("JAX's barrier of another thread", in_another_thread),
    ):
        for each in range(RUNS + 1):
            # Nothing is held up in the first run, which compiles.
            (release.clear if each else release.set)()
            jax.block_until_ready(run())
            case.barrier()
            if late:
                case.wrong("stuck", Stage.DISPATCH, f"{way} waited for another device than its own")
                return
