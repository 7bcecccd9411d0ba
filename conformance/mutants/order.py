"""Callbacks that run in another order, on another device, or at another time."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import defaultdict, deque
from typing import Any

import jax

from .host_functions import around, at_barriers, instead, surround
from .mutant import Library, Names, mutant

LATE_SECONDS = 0.2


@mutant(
    "id_tap/jit/cpu-* id_tap/scan/cpu-8dev id_tap/cond/cpu-8dev debug_callback_ordered/jit/cpu-8dev",
    "order at callback",
)
def neighbours_swapped(library: Library) -> Names:
    """Of two callbacks the second runs first."""
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

    return {**surround(library, run, "id_tap", "debug.callback"), **at_barriers(library, held)}


@mutant("id_tap_device/pmap/cpu-8dev id_tap_device/shard_map/cpu-8dev", "wrong device at callback")
def devices_swapped(library: Library) -> Names:
    """Two devices are given each other's operands."""
    held: list[Any] = []

    def run(function: Any, operand: Any, transforms: Any, device: Any = None) -> None:
        held.append((function, operand, transforms, device))

    def barrier_wait() -> None:
        """Gives the first two devices each other's operands."""
        library.barrier_wait()
        operands: defaultdict[Any, deque[Any]] = defaultdict(deque)
        for function, operand, _, device in held:
            operands[function, device.id].append(operand)
        for function, operand, transforms, device in held:
            of_other = operands[function, {0: 1, 1: 0}.get(device.id, device.id)]
            function(of_other.popleft() if of_other else operand, transforms, device=device)
        held.clear()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


@mutant(
    "io_callback_ordered/scan/cpu-8dev io_callback_ordered/fori/cpu-8dev "
    "io_callback_ordered/vmap/cpu-8dev id_tap/scan/cpu-8dev",
    "order at callback, not refused at trace",
)
def ordered_as_unordered(library: Library) -> Names:
    """Nothing holds ordered callbacks in their order."""

    def io_callback(*arguments: Any, ordered: bool = False, **options: Any) -> Any:
        return library.io_callback(*arguments, **options)

    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        library.debug.callback(lambda value: function(value, ()), operand)
        return operand

    return {"io_callback": io_callback, "id_tap": id_tap}


@mutant("id_tap/jit/cpu-8dev id_tap/scan/cpu-8dev", "order at callback, overlap at callback")
def all_at_once(library: Library) -> Names:
    """Every callback has a thread of its own."""
    joins: deque[Any] = deque()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        # The delay shrinks, so that later callbacks end earlier.
        def slowly(delay: float) -> None:
            time.sleep(delay)
            function(*arguments, **options)

        thread = threading.Thread(target=slowly, args=(0.1 / (1 + len(joins)),))
        thread.start()
        joins.append(thread.join)

    return {**surround(library, run, "id_tap"), **at_barriers(library, joins)}


@mutant("id_tap/case.starts_programs_below_many.pmap/cpu-8dev", "overlap at callback")
def overlapping(library: Library) -> Names:
    """Callbacks begin in order, and none waits for the one before to end."""
    joins: deque[Any] = deque()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        begun = threading.Event()

        def begin() -> None:
            begun.set()
            function(*arguments, **options)

        thread = threading.Thread(target=begin)
        thread.start()
        joins.append(thread.join)
        begun.wait()

    return {**surround(library, run, "id_tap"), **at_barriers(library, joins)}


@mutant("id_tap_device/pmap/cpu-8dev call_device/shard_map/cpu-8dev", "wrong device at callback")
@around("id_tap", "call")
def first_device_received(function: Any, *arguments: Any, device: Any = None) -> Any:
    """Callbacks receive the first device, on whichever they run."""
    received = {} if device is None else {"device": jax.devices()[0]}
    return function(*arguments, **received)


@mutant("id_tap_device_index/pjit/cpu-8dev", "wrong device at callback")
@instead("id_tap")
def device_index_ignored(tap: Any, *arguments: Any, device_index: int = 0, **options: Any) -> Any:
    """The first device of a mesh calls back, whichever was asked for."""
    return tap(*arguments, **options)


@mutant("id_tap/jit/cpu-8dev id_tap/pmap/cpu-8dev debug_callback/jit/cpu-8dev", "early barrier at barrier")
def late(library: Library) -> Names:
    """Callbacks run a while after the barrier has returned."""
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


@mutant("id_tap/case.barrier_covers.*", "early barrier at barrier")
def early_barrier(library: Library) -> Names:
    """The barrier does not wait."""
    return {"barrier_wait": lambda: None}


@mutant("io_callback_ordered/case.waits_for_operand.jit/cpu-8dev", "order at callback")
def threads_on_their_own(_: Library) -> Names:
    """A program does not wait for one that another thread has started before."""
    # JAX's own ordered callback has a separate order for each thread.
    return {"io_callback": jax.experimental.io_callback}
