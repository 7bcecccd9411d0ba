"""Barriers of programs on several devices, of which one is late or runs a callback of JAX's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import BEGINS_WITHIN, WHILE, Case, case
from ..harness.hosts import Host
from .covers import EARLY_SECONDS

RUNS = 2


def late_on_the_last(case: Case, host: Host, early: threading.Event) -> Callable[[Any], Any]:
    """A program on all devices whose callback comes late on the last one: after the event, or after a while."""
    last = case.operand[-1]

    def wait(operand: Any) -> Any:
        if np.array_equal(operand, last):
            early.wait(WHILE)
        return np.asarray(operand)

    # The device waits for the call, so the operand of the other callback is not there before it ends.
    program: Callable[[Any], Any] = case.compile(lambda x: case.apply(host, case.implementation.call(wait, x, x)))
    return program


@case("pmap", "id_tap", "H13", minimum_devices=2)
def jaxs_barrier_covers_all(case: Case) -> None:
    """`jax.effects_barrier` waits for the taps on all devices of a program, also where the last device is late."""
    host = case.host()
    program = late_on_the_last(case, host, threading.Event())
    for _ in range(RUNS + 1):
        case.forget()
        result = program(case.operand)
        jax.effects_barrier()
        case.recorder.mark_barrier()
        in_time = case.recorder.history()
        jax.block_until_ready(result)
        case.same("early barrier", Stage.BARRIER, len(in_time.events), case.copies, "taps when it returned")
        case.saw_parts(host, case.operand)


@case("pmap", "id_tap", "H13", minimum_devices=2)
def started_in_turn(case: Case) -> None:
    """The barrier waits for the callbacks of a program that a tap has started, and that nobody else waits for."""
    host = case.host()
    inner = late_on_the_last(case, host, threading.Event())
    jax.block_until_ready(inner(case.operand))
    case.barrier()
    # Nobody waits for these results.
    started: list[Any] = []
    outer = jax.jit(lambda x: case.implementation.tap(lambda *_: started.append(inner(case.operand)), x))
    for _ in range(RUNS):
        case.forget()
        jax.block_until_ready(outer(np.float32(1)))
        case.barrier()
        case.same("early barrier", Stage.BARRIER, len(case.events), case.copies, "taps in time")
        jax.block_until_ready(started)


@case("shard_map", "id_tap", "H13", minimum_devices=2)
def jaxs_barrier_covers_both(case: Case) -> None:
    """H13: JAX's own barrier waits for taps of all devices and for JAX's own callbacks, whichever came first."""
    for of_jax in (False, True):
        _check_both(case, of_jax)


def _check_both(case: Case, of_jax: bool) -> None:
    """Hold a tap, or a callback of JAX's, on the last device."""
    release, ended = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def held(operand: Any, transforms: Any = ()) -> None:
        if np.array_equal(np.ravel(operand), case.operand[-1]):
            release.wait(2 * BEGINS_WITHIN)
            ended.set()

    def calling(x: Any) -> Any:
        jax.debug.callback(held if of_jax else lambda _: None, x)
        return x

    # After a callback of JAX's, taps outside jit: a program would wait for it, and so would the barrier.
    tapping = [] if of_jax else [case.compile(lambda x: case.implementation.tap(held, x))]
    programs = [*tapping, case.compile(calling)]

    def run() -> None:
        for program in programs:
            program(case.operand)

    def wait() -> None:
        run()
        for device in case.devices if of_jax else ():
            case.implementation.tap(lambda *_: None, jax.device_put(np.float32(1), device))
        jax.effects_barrier()
        in_time.append(ended.is_set())

    # Compiled beforehand: the barrier should begin while the one that is held runs.
    release.set()
    run()
    jax.effects_barrier()
    case.barrier()
    release.clear()
    ended.clear()
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(EARLY_SECONDS)
    release.set()
    waiting.join(BEGINS_WITHIN)
    held_one = "a callback of JAX's" if of_jax else "a tap on the last device"
    case.same("early barrier", Stage.BARRIER, in_time, [True], f"whether {held_one} had ended")
    case.barrier()
