"""Faults in the other duties of a library: reports, queues, threads, other programs and devices, the end."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from .host_functions import around, at_barriers, reporting, surround
from .mutant import Library, Names, mutant

MEETING_SECONDS = 0.5
"""The time for which a call waits for a concurrent one."""


@mutant("of several failures the barrier reports the last", "id_tap/case.several_fail.*", "wrong failures at barrier")
def only_the_last_failure(library: Library) -> Names:
    def report(failed: Any) -> None:
        if failed:
            raise library.CallbackException(str(failed), failed.failures[-1:]) from failed.__cause__

    return reporting(library, report)


@mutant(
    "an error does not say which device's failure it is",
    "io_callback/case.raises_on_one.* call/case.raises_on_one.pmap/* id_tap/case.raises_on_one.*",
    "poor error at barrier",
)
@around("id_tap", "call", "io_callback")
def anonymous_failure(function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except ValueError as error:
        # The text without the part that distinguishes one device's failure from another's.
        raise ValueError(" ".join(str(error).split()[:2])) from None


@mutant(
    "what another thread started later runs before",
    "id_tap/case.order_across_threads.pmap/cpu-8dev",
    "order at callback",
)
def earlier_thread_last(library: Library) -> Names:
    held: deque[Any] = deque()
    first: list[Any] = []
    lock = threading.Lock()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        with lock:
            first[:] = first or [function]
            if function == first[0]:
                held.append(lambda: function(*arguments, **options))
                return
        function(*arguments, **options)

    return {**surround(library, run, "id_tap"), **at_barriers(library, held)}


@mutant(
    "the device waits for the function of a tap", "id_tap/case.blocks_until_released.jit/cpu-8dev", "waits at result"
)
def tap_waited_for(library: Library) -> Names:
    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        library.io_callback(lambda value: function(value, ()), None, operand, ordered=True)
        return operand

    return {"id_tap": id_tap}


class _Meeting:
    """Passes the result of one of two simultaneous calls to the other."""

    def __init__(self, result: Any) -> None:
        self.left = result
        self.brought: Any = result
        self.happened = threading.Event()


@mutant(
    "two calls that run at the same time get each other's results",
    "call/case.blocks_until_released.pmap/cpu-8dev call/case.two_threads.*",
    "result at result",
)
def exchanged(library: Library) -> Names:
    waiting: list[_Meeting] = []
    lock = threading.Lock()

    def run(function: Any, operand: Any) -> Any:
        meeting = _Meeting(function(operand))
        with lock:
            partner = waiting.pop() if waiting else None
            if partner is None:
                waiting.append(meeting)
            else:
                partner.brought = meeting.left
                partner.happened.set()
                return partner.left
        meeting.happened.wait(MEETING_SECONDS)
        with lock:
            if meeting in waiting:
                waiting.remove(meeting)
        return meeting.brought

    return surround(library, run, "call")


@mutant("a callback cannot end its process", "call/case.os_exit.pmap/cpu-8dev", "crash at *")
def exit_caught(library: Library) -> Names:
    leave, lock, inside = os._exit, threading.Lock(), [0]

    def enter(change: int) -> None:
        # The callbacks of several devices run at once.
        with lock:
            inside[0] += change
            # As if a callback ran in a process of its own.
            replaced: Any = (lambda status: None) if inside[0] else leave
            os._exit = replaced

    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        enter(1)
        try:
            return function(*arguments, **options) or np.zeros_like(arguments[0])
        finally:
            enter(-1)

    return surround(library, run, "call")


@mutant(
    "the interpreter ends under a pure callback that runs",
    "pure_callback/case.running_at_exit.shard_map/* pure_callback/case.running_at_exit.pmap/*",
    "crash at exit",
)
def not_awaited_at_exit(library: Library) -> Names:
    # JAX's own is not.
    return {"pure_callback": jax.pure_callback}


@mutant("Ctrl-C in a callback is lost", "call/case.signals.jit/cpu-8dev", "swallowed error at callback")
@around("call")
def signals_blocked(function: Any, *arguments: Any, **options: Any) -> Any:
    # Ctrl-C while a callback runs is lost.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return function(*arguments, **options)
    finally:
        signal.signal(signal.SIGINT, before)


@mutant(
    "arrays that a dlpack callback was given are views that mislead later callbacks",
    "dlpack_callback/case.keeps_its_view.jit/cpu-8dev",
    "misled at dispatch",
)
def lends_its_view(library: Library) -> Names:
    def dlpack_callback(function: Any, wanted: Any, **options: Any) -> Any:
        def filling(context: Any, out: Any, *buffers: Any) -> None:
            np.asarray(out)[...] = function(*buffers)

        return library.buffer_callback(filling, wanted)

    return {"dlpack_callback": dlpack_callback}


@mutant(
    "a program calls the function of an earlier program with equal HLO",
    "id_tap/case.equal_programs_from_a_cache.jit/* id_tap/case.compiled_ahead.jit/* id_tap/case.compiled_ahead.pmap/*",
    "wrong function at callback",
)
@around("id_tap", having=dict)
def first_of_equal(firsts: Any, function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    # As if programs with equal HLO shared the functions, too, and not the executable alone.
    return firsts.setdefault(operand.shape, function)(operand, *arguments, **options)


@mutant(
    "each device gives its buffer callback the part of the device that was first",
    "dlpack_callback/case.parts_of_buffers.shard_map/*",
    "result at result",
)
@around("dlpack_callback", having=dict)
def part_of_another(parts: Any, function: Any, buffer: Any) -> Any:
    part = np.from_dlpack(buffer).copy()
    return function(parts.setdefault(part.shape, part))


@mutant(
    "a callback in a solver, or in a shard_map over some axes, runs twice",
    "id_tap/case.in_solvers.jit/* debug_callback/case.partially_manual.shard_map/*",
    "wrong count at callback, duplicate at callback",
)
@around("id_tap", "debug.callback")
def again(function: Any, *arguments: Any, **options: Any) -> Any:
    function(*arguments, **options)
    return function(*arguments, **options)
