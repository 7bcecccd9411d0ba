"""Callbacks that run in another order, on another device, or at another time."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import Counter, deque
from typing import Any

import jax

from ..oracle.verdicts import Stage
from .host_functions import surround
from .mutant import Library, Mutant, Names, at

LATE_SECONDS = 0.2


def _neighbours_swapped(library: Library) -> Names:
    held: deque[Any] = deque()
    lock = threading.Lock()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        this = functools.partial(function, *arguments, **options)
        with lock:
            if not held:
                held.append(this)
                return
            earlier = held.popleft()
        this()
        earlier()

    def barrier_wait() -> None:
        library.barrier_wait()
        while held:
            held.popleft()()

    return {**surround(library, run, "id_tap", "debug.callback"), "barrier_wait": barrier_wait}


def _devices_swapped(library: Library) -> Names:
    held: list[Any] = []

    def run(function: Any, operand: Any, transforms: Any, device: Any = None) -> None:
        held.append((function, operand, transforms, device))

    def barrier_wait() -> None:
        """Gives the first two devices each other's operands."""
        library.barrier_wait()
        counts: Counter[Any] = Counter()
        places: dict[Any, Any] = {}
        for function, operand, _, device in held:
            number = counts[function, device.id]
            counts[function, device.id] += 1
            places[function, number, device.id] = operand
        counts.clear()
        for function, operand, transforms, device in held:
            number = counts[function, device.id]
            counts[function, device.id] += 1
            other = {0: 1, 1: 0}.get(device.id, device.id)
            function(places.get((function, number, other), operand), transforms, device=device)
        held.clear()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


def _ordered_as_unordered(library: Library) -> Names:
    def io_callback(*arguments: Any, ordered: bool = False, **options: Any) -> Any:
        return library.io_callback(*arguments, **options)

    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        library.debug.callback(lambda value: function(value, ()), operand)
        return operand

    return {"io_callback": io_callback, "id_tap": id_tap}


def _all_at_once(library: Library) -> Names:
    threads: list[threading.Thread] = []

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        # The delay shrinks, so that later callbacks end earlier.
        def slowly(delay: float) -> None:
            time.sleep(delay)
            function(*arguments, **options)

        threads.append(threading.Thread(target=slowly, args=(0.1 / (1 + len(threads)),)))
        threads[-1].start()

    def barrier_wait() -> None:
        library.barrier_wait()
        while threads:
            threads.pop().join()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


def _overlapping(library: Library) -> Names:
    threads: list[threading.Thread] = []

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        begun = threading.Event()

        def begin() -> None:
            begun.set()
            function(*arguments, **options)

        threads.append(threading.Thread(target=begin))
        threads[-1].start()
        begun.wait()

    def barrier_wait() -> None:
        library.barrier_wait()
        while threads:
            threads.pop().join()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


def _first_device_received(library: Library) -> Names:
    def run(function: Any, *arguments: Any, device: Any = None) -> Any:
        received = {} if device is None else {"device": jax.devices()[0]}
        return function(*arguments, **received)

    return surround(library, run, "id_tap", "call")


def _device_index_ignored(library: Library) -> Names:
    def id_tap(function: Any, operand: Any, *, device_index: int = 0, **options: Any) -> Any:
        return library.id_tap(function, operand, **options)

    return {"id_tap": id_tap}


def _late(library: Library) -> Names:
    waiting: queue.Queue[Any] = queue.Queue()

    def deliver() -> None:
        while True:
            due, function = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            function()

    threading.Thread(target=deliver, daemon=True).start()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        waiting.put((time.monotonic() + LATE_SECONDS, functools.partial(function, *arguments, **options)))

    return surround(library, run, "id_tap", "debug.callback")


def _early_barrier(library: Library) -> Names:
    return {"barrier_wait": lambda: None}


def _threads_on_their_own(library: Library) -> Names:
    def io_callback(*arguments: Any, **options: Any) -> Any:
        # JAX's own ordered callback has a separate order for each thread.
        return jax.experimental.io_callback(*arguments, **options)

    return {"io_callback": io_callback}


_ORDER = at(Stage.CALLBACK, "order")
_WRONG_DEVICE = at(Stage.CALLBACK, "wrong device")
_EARLY_BARRIER = at(Stage.BARRIER, "early barrier")

MUTANTS = (
    Mutant(
        "neighbours_swapped",
        "of two callbacks the second runs first",
        _neighbours_swapped,
        ("id_tap/jit/cpu-*", "id_tap/scan/cpu-8dev", "id_tap/cond/cpu-8dev", "debug_callback_ordered/jit/cpu-8dev"),
        _ORDER,
    ),
    Mutant(
        "devices_swapped",
        "two devices are given each other's operands",
        _devices_swapped,
        ("id_tap_device/pmap/cpu-8dev", "id_tap_device/shard_map/cpu-8dev"),
        _WRONG_DEVICE,
    ),
    Mutant(
        "ordered_as_unordered",
        "nothing holds ordered callbacks in their order",
        _ordered_as_unordered,
        (
            "io_callback_ordered/scan/cpu-8dev",
            "io_callback_ordered/fori/cpu-8dev",
            "io_callback_ordered/vmap/cpu-8dev",
            "id_tap/scan/cpu-8dev",
        ),
        (*_ORDER, *at(Stage.TRACE, "not refused")),
    ),
    Mutant(
        "all_at_once",
        "every callback has a thread of its own",
        _all_at_once,
        ("id_tap/jit/cpu-8dev", "id_tap/scan/cpu-8dev"),
        at(Stage.CALLBACK, "order", "overlap"),
    ),
    Mutant(
        "overlapping",
        "callbacks begin in order, and none waits for the one before to end",
        _overlapping,
        ("id_tap/case.starts_programs_below_many.pmap/cpu-8dev",),
        at(Stage.CALLBACK, "overlap"),
    ),
    Mutant(
        "first_device_received",
        "callbacks receive the first device, on whichever they run",
        _first_device_received,
        ("id_tap_device/pmap/cpu-8dev", "call_device/shard_map/cpu-8dev"),
        _WRONG_DEVICE,
    ),
    Mutant(
        "device_index_ignored",
        "the first device of a mesh calls back, whichever was asked for",
        _device_index_ignored,
        ("id_tap_device_index/pjit/cpu-8dev", "id_tap_device_index/pjit.scan/cpu-8dev"),
        _WRONG_DEVICE,
    ),
    Mutant(
        "threads_on_their_own",
        "a program does not wait for one that another thread has started before",
        _threads_on_their_own,
        ("io_callback_ordered/case.waits_for_operand.jit/cpu-8dev",),
        _ORDER,
    ),
    Mutant(
        "late",
        "callbacks run a while after the barrier has returned",
        _late,
        ("id_tap/jit/cpu-8dev", "id_tap/pmap/cpu-8dev", "debug_callback/jit/cpu-8dev"),
        _EARLY_BARRIER,
    ),
    Mutant(
        "early_barrier",
        "the barrier does not wait",
        _early_barrier,
        ("id_tap/case.barrier_covers.*",),
        _EARLY_BARRIER,
    ),
)
