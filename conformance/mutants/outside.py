"""Cases in the other duties of a library: reports, flags, queues, threads, and the end of the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.verdicts import Stage
from .host_functions import surround
from .mutant import Library, Mutant, Names, Symptom, at

MEETING_SECONDS = 0.5
"""The time for which a call waits for a concurrent one."""


def _only_the_last_failure(library: Library) -> Names:
    def barrier_wait() -> None:
        try:
            library.barrier_wait()
        except library.CallbackException as error:
            raise library.CallbackException(str(error), error.failures[-1:]) from error.__cause__

    return {"barrier_wait": barrier_wait}


def _anonymous_failure(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except ValueError as error:
            # The text without the part that distinguishes one device's failure from another's.
            raise ValueError(" ".join(str(error).split()[:2])) from None

    return surround(library, run, "id_tap", "call", "io_callback")


def _earlier_thread_last(library: Library) -> Names:
    held: list[Callable[[], Any]] = []
    first: list[Any] = []
    lock = threading.Lock()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        with lock:
            first[:] = first or [function]
            if function == first[0]:
                held.append(lambda: function(*arguments, **options))
                return
        function(*arguments, **options)

    def barrier_wait() -> None:
        library.barrier_wait()
        while held:
            held.pop(0)()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


def _tap_waited_for(library: Library) -> Names:
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


def _exchanged(library: Library) -> Names:
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


def _exit_caught(library: Library) -> Names:
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


def _not_awaited_at_exit(library: Library) -> Names:
    # JAX's own is not.
    return {"pure_callback": jax.pure_callback}


def _signals_blocked(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        # Ctrl-C while a callback runs is lost.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return function(*arguments, **options)
        finally:
            signal.signal(signal.SIGINT, before)

    return surround(library, run, "call")


def _lends_its_view(library: Library) -> Names:
    def dlpack_callback(function: Any, wanted: Any, **options: Any) -> Any:
        def filling(context: Any, out: Any, *buffers: Any) -> None:
            np.asarray(out)[...] = function(*buffers)

        return library.buffer_callback(filling, wanted)

    return {"dlpack_callback": dlpack_callback}


MUTANTS = (
    Mutant(
        "only_the_last_failure",
        "of several failures the barrier reports the last",
        _only_the_last_failure,
        ("id_tap/case.several_fail.*",),
        at(Stage.BARRIER, "wrong failures"),
    ),
    Mutant(
        "anonymous_failure",
        "an error does not say which device's failure it is",
        _anonymous_failure,
        ("io_callback/case.raises_on_one.*", "call/case.raises_on_one.pmap/*", "id_tap/case.raises_on_one.*"),
        at(Stage.BARRIER, "poor error"),
    ),
    Mutant(
        "earlier_thread_last",
        "what another thread started later runs before",
        _earlier_thread_last,
        ("id_tap/case.order_across_threads.pmap/cpu-8dev",),
        at(Stage.CALLBACK, "order"),
    ),
    Mutant(
        "tap_waited_for",
        "the device waits for the function of a tap",
        _tap_waited_for,
        ("id_tap/case.blocks_until_released.jit/cpu-8dev",),
        at(Stage.RESULT, "waits"),
    ),
    Mutant(
        "exchanged",
        "two calls that run at the same time get each other's results",
        _exchanged,
        ("call/case.blocks_until_released.pmap/cpu-8dev", "call/case.two_threads.*"),
        at(Stage.RESULT, "result"),
    ),
    Mutant(
        "exit_caught",
        "a callback cannot end its process",
        _exit_caught,
        ("call/case.os_exit.pmap/cpu-8dev",),
        tuple(Symptom("crash", stage) for stage in Stage),
    ),
    Mutant(
        "not_awaited_at_exit",
        "the interpreter ends under a pure callback that runs",
        _not_awaited_at_exit,
        ("pure_callback/case.running_at_exit.shard_map/*", "pure_callback/case.running_at_exit.pmap/*"),
        at(Stage.EXIT, "crash"),
    ),
    Mutant(
        "signals_blocked",
        "Ctrl-C in a callback is lost",
        _signals_blocked,
        ("call/case.signals.jit/cpu-8dev",),
        at(Stage.CALLBACK, "swallowed error"),
    ),
    Mutant(
        "lends_its_view",
        "arrays that a dlpack callback was given are views that mislead later callbacks",
        _lends_its_view,
        ("dlpack_callback/case.keeps_its_view.jit/cpu-8dev",),
        at(Stage.DISPATCH, "misled"),
    ),
)
