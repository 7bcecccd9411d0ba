"""Callbacks that go wrong in the second of several processes alone."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from .host_functions import around, surround
from .mutant import Library, Names, mutant

ONE_IN = 3


def _in_second_process() -> bool:
    return jax.process_index() == 1


@mutant(
    "the second process loses one callback in three",
    "id_tap/shard_map/cpu-2x2 debug_callback/pmap/cpu-2x2 id_tap/jit/cpu-2x2",
    "lost at callback",
    words="in process 1",
)
def lost_in_second_process(library: Library) -> Names:
    numbers = itertools.count(1)

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        if not _in_second_process() or next(numbers) % ONE_IN:
            function(*arguments, **options)

    return surround(library, run, "id_tap", "debug.callback")


@mutant(
    "the second process runs one callback in three twice",
    "id_tap/shard_map/cpu-2x2 debug_callback/pmap/cpu-2x2 id_tap/jit/cpu-2x2",
    "duplicate at callback",
    words="in process 1",
)
def doubled_in_second_process(library: Library) -> Names:
    numbers = itertools.count(1)

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        if _in_second_process() and not next(numbers) % ONE_IN:
            function(*arguments, **options)

    return surround(library, run, "id_tap", "debug.callback")


@mutant(
    "the callbacks of the second process receive the devices of the first one",
    "id_tap_device/shard_map/cpu-2x2 call_device/pmap/cpu-2x2 id_tap_device/jit/cpu-2x2",
    "wrong device at callback",
    words="in process 1",
)
@around("id_tap", "call")
def device_of_first_process_received(function: Any, *arguments: Any, device: Any = None) -> Any:
    if device is not None and _in_second_process():
        # The device of the same place in the first process, as if each process numbered its own.
        device = jax.devices()[jax.local_devices().index(device)]
    return function(*arguments, **({} if device is None else {"device": device}))


@mutant(
    "of two callbacks of the second process the second runs first",
    "id_tap/jit/cpu-2x2",
    "order at callback",
    words="in process 1",
)
def swapped_in_second_process(library: Library) -> Names:
    held: deque[Any] = deque()
    lock = threading.Lock()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        this = functools.partial(function, *arguments, **options)
        with lock:
            if _in_second_process() and not held:
                held.append(this)
                return
            earlier = held.popleft() if held else None
        this()
        if earlier:
            earlier()

    def barrier_wait() -> None:
        library.barrier_wait()
        while held:
            held.popleft()()

    return {**surround(library, run, "id_tap"), "barrier_wait": barrier_wait}


@mutant(
    "the last call of a program has a wrong result in the second process",
    "call/pmap/cpu-2x2 call/jit/cpu-2x2",
    "result at result",
    words="in process 1",
)
@around("call")
def wrong_result_in_second_process(function: Any, *arguments: Any, **options: Any) -> Any:
    result = function(*arguments, **options)
    # No other callback has the result of this one as its operand.
    wrong = _in_second_process() and getattr(function, "site", "last") == "last"
    return result + np.float32(1) if wrong else result
