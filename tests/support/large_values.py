"""Programs of large values that are handed over in C, for several files of tests (H24)."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._native.library import MOST_INSIDE
from hostcb._runtime.memory import owners
from hostcb._runtime.queue.queues import queues

WORDS = MOST_INSIDE // 4
MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """All blocks of these tests come back."""
    hcb.barrier_wait()
    gc.collect()
    hcb.stop_outfeed_receiver()
    before, ready = owners.mapped()
    yield
    hcb.barrier_wait()
    gc.collect()
    hcb.stop_outfeed_receiver()
    # Blocks that were ready before the first ring was made go with those of the test.
    assert owners.mapped() == (before - ready, 0)
    for queue in queues.all():
        assert queue.ring is None or queue.ring.counters.in_blocks == queue.ring.counters.bytes == 0


@contextlib.contextmanager
def queue_budget(nbytes: int) -> Iterator[None]:
    """The budget of each queue, until all that the block has tapped has run."""
    name = "jax_host_callback_max_queue_byte_size"
    hcb.barrier_wait()
    jax.config.update(name, nbytes)
    try:
        yield
    finally:
        hcb.barrier_wait()
        jax.config.update(name, None)


def accepted(device: Any) -> int:
    ring = queues[device].ring
    return 0 if ring is None else int(ring.counters.accepted)


def looped(function: Any, steps: int, **options: Any) -> Any:
    """A program that taps `x, x + 1, …` in a loop."""

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(function, x, **options) + 1

    return jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, x))


def taken_while_locked(program: Any, x: Any, microseconds: int) -> tuple[int, int]:
    """How many taps the device hands over while this thread keeps the interpreter lock, and how many before."""
    ring = queues[jax.devices()[0]].ring
    assert ring is not None, "no tap of this device was handed over in C"
    # A PyDLL keeps the interpreter lock: no other thread runs Python meanwhile.
    wait = ctypes.PyDLL(None).usleep
    before = ring.counters.accepted
    thread = threading.Thread(target=lambda: program(x).block_until_ready())
    thread.start()
    while ring.counters.accepted == before:
        pass
    start = ring.counters.accepted
    wait(microseconds)
    taken = ring.counters.accepted - start
    thread.join()
    hcb.barrier_wait()
    return taken, start - before


def number_in(array: Any) -> float:
    """The number that is everywhere in an array."""
    first = array.flat[0]
    assert (array == first).all(), "a value that is not whole"
    return float(first)
