"""Faults in the other duties of a library: reports, queues, threads, other programs and devices, the end."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from .host_functions import around, at_barriers, reporting, surround
from .mutant import Library, Names, mutant

MEETING_SECONDS = 0.5
"""The time for which a call waits for a concurrent one."""


@mutant("id_tap/case.several_fail.*", "wrong failures at barrier")
def only_the_last_failure(library: Library) -> Names:
    """Of several failures the barrier reports the last."""

    def report(failed: Any) -> None:
        if failed:
            raise library.CallbackException(str(failed), failed.failures[-1:]) from failed.__cause__

    return reporting(library, report)


@mutant(
    "io_callback/case.raises_on_one.* call/case.raises_on_one.pmap/* id_tap/case.raises_on_one.*",
    "poor error at barrier",
)
@around("id_tap", "call", "io_callback")
def anonymous_failure(function: Any, *arguments: Any, **options: Any) -> Any:
    """An error does not say which device's failure it is."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        # The text without the part that distinguishes one device's failure from another's.
        raise ValueError(" ".join(str(error).split()[:2])) from None


@mutant("id_tap/case.order_across_threads.pmap/cpu-8dev", "order at callback")
def earlier_thread_last(library: Library) -> Names:
    """What another thread started later runs before."""
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


@mutant("id_tap/case.blocks_until_released.jit/cpu-8dev", "waits at result")
def tap_waited_for(library: Library) -> Names:
    """The device waits for the function of a tap."""

    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        library.io_callback(lambda value: function(value, ()), None, operand, ordered=True)
        return operand

    return {"id_tap": id_tap}


@mutant("call/case.blocks_until_released.pmap/cpu-8dev call/case.two_threads.*", "result at result")
def exchanged(library: Library) -> Names:
    """Two calls that run at the same time get each other's results."""
    waiting: dict[Future[Any], Any] = {}
    lock = threading.Lock()

    def run(function: Any, operand: Any) -> Any:
        result, of_another = function(operand), Future[Any]()
        with lock:
            if waiting:
                partner, left = waiting.popitem()
                partner.set_result(result)
                return left
            waiting[of_another] = result
        concurrent.futures.wait([of_another], MEETING_SECONDS)
        with lock:
            return waiting.pop(of_another) if of_another in waiting else of_another.result()

    return surround(library, run, "call")


@mutant("call/case.os_exit.pmap/cpu-8dev", "crash at *")
def exit_caught(library: Library) -> Names:
    """A callback cannot end its process."""
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


@mutant("pure_callback/case.running_at_exit.shard_map/* pure_callback/case.running_at_exit.pmap/*", "crash at exit")
def not_awaited_at_exit(library: Library) -> Names:
    """The interpreter ends under a pure callback that runs."""
    # JAX's own is not.
    return {"pure_callback": jax.pure_callback}


@mutant("call/case.signals.jit/cpu-8dev", "swallowed error at callback")
@around("call")
def signals_blocked(function: Any, *arguments: Any, **options: Any) -> Any:
    """Ctrl-C in a callback is lost."""
    # Ctrl-C while a callback runs is lost.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return function(*arguments, **options)
    finally:
        signal.signal(signal.SIGINT, before)


@mutant("dlpack_callback/case.keeps_its_view.jit/cpu-8dev", "misled at dispatch")
def lends_its_view(library: Library) -> Names:
    """Arrays that a dlpack callback was given are views that mislead later callbacks."""

    def dlpack_callback(function: Any, wanted: Any, **options: Any) -> Any:
        def filling(context: Any, out: Any, *buffers: Any) -> None:
            np.asarray(out)[...] = function(*buffers)

        return library.buffer_callback(filling, wanted)

    return {"dlpack_callback": dlpack_callback}


@mutant(
    "id_tap/case.equal_programs_from_a_cache.jit/* id_tap/case.compiled_ahead.jit/* id_tap/case.compiled_ahead.pmap/*",
    "wrong function at callback",
)
@around("id_tap", having=dict)
def first_of_equal(firsts: Any, function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """A program calls the function of an earlier program with equal HLO."""
    # As if programs with equal HLO shared the functions, too, and not the executable alone.
    return firsts.setdefault(operand.shape, function)(operand, *arguments, **options)


@mutant("dlpack_callback/case.parts_of_buffers.shard_map/*", "result at result")
@around("dlpack_callback", having=dict)
def part_of_another(parts: Any, function: Any, buffer: Any) -> Any:
    """Each device gives its buffer callback the part of the device that was first."""
    part = np.from_dlpack(buffer).copy()
    return function(parts.setdefault(part.shape, part))


@mutant(
    "id_tap/case.in_solvers.jit/* debug_callback/case.partially_manual.shard_map/*",
    "wrong count at callback, duplicate at callback",
)
@around("id_tap", "debug.callback")
def again(function: Any, *arguments: Any, **options: Any) -> Any:
    """A callback in a solver, or in a shard_map over some axes, runs twice."""
    function(*arguments, **options)
    return function(*arguments, **options)
