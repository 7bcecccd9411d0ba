"""H12, H24: the budget of a queue, and the memory of large values that are handed over in C."""

from __future__ import annotations

import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support import helpers, large_values
from support.helpers import DEADLINE
from support.large_values import MEBIBYTE, WORDS, looped, number_in, queue_budget
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.memory import owners
from hostcb._runtime.queue.queues import queues

pytestmark = [
    pytest.mark.contract("H24"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]

nothing_is_left = large_values.nothing_is_left


@pytest.mark.contract("H12")
@pytest.mark.parametrize("kibibytes", [80, 256, 1024])
def test_a_slow_consumer_holds_no_more_than_the_budget(kibibytes: int, devices: list[jax.Device]) -> None:
    held, values, budget = [], [], 4 * MEBIBYTE

    def tap(arg: Any, transforms: Any) -> None:
        mapped, ready = owners.mapped()
        held.append(mapped - ready)
        if len(values) == 1:
            # The device goes on until the queue is full, and then waits.
            queue = queues[devices[0]]
            helpers.wait_until(lambda: queue.held() + arg.nbytes > budget)
        values.append(number_in(arg))

    steps = 3 * budget // (kibibytes << 10)
    with queue_budget(budget):
        looped(tap, steps)(jnp.zeros(kibibytes << 8)).block_until_ready()
    assert values == list(range(steps))
    assert max(held) <= budget, "the memory of all values is more than the budget"
    # The functions of values that wait through Python have the same memory.
    assert owners.mapped()[0] <= budget


@pytest.mark.contract("H12")
def test_memory_that_has_come_back_is_used_again_and_is_bounded() -> None:
    addresses: set[int] = set()
    kept: list[Any] = []

    def tap(arg: Any, transforms: Any) -> None:
        addresses.add(arg.ctypes.data)

    words = MEBIBYTE // 4
    program = jax.jit(lambda x: hcb.id_tap(tap, x))
    for _ in range(8):
        program(jnp.zeros(words)).block_until_ready()
        hcb.barrier_wait()
    assert len(addresses) <= 2
    # Blocks that come back all at once, of several sizes.
    most = 64 * MEBIBYTE
    for size in (words, 3 * words):
        keep = looped(lambda arg, transforms: kept.append(arg), 48 * words // size)
        keep(jnp.zeros(size)).block_until_ready()
        hcb.barrier_wait()
    assert owners.mapped()[0] - owners.mapped()[1] >= 96 * MEBIBYTE
    kept.clear()
    mapped, ready = owners.mapped()
    assert mapped == ready and most * 3 // 4 <= ready <= most
    # A larger one than all ready ones together leaves them.
    looped(tap, 1)(jnp.zeros(17 * words * 4)).block_until_ready()
    hcb.barrier_wait()
    assert owners.mapped() == (ready, ready)


WITHOUT_MEMORY = """
import resource
seen = []
def tap(arg, transforms):
    seen.append(float(arg[0]))

program = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, n: n + hcb.id_tap(tap, x)[0], 0.0))
x = jnp.ones(1 << 24)
program(x).block_until_ready()
hcb.stop_outfeed_receiver()
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
try:
    program(x).block_until_ready()
    error = "none"
except Exception as raised:
    error = str(raised)
resource.setrlimit(resource.RLIMIT_AS, limits)
before = len(seen)
program(x).block_until_ready()
hcb.barrier_wait()
print(json.dumps(["hostcb found no 67108864 bytes for a tapped operand" in error or error, before, len(seen)]))
"""


@pytest.mark.contract("H12")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
def test_a_value_that_finds_no_memory_is_an_error_and_no_more() -> None:
    ended = run_program(WITHOUT_MEMORY, devices=None, env={"HOSTCB_NATIVE": "1"}, timeout=60)
    assert ended.json() == [True, 2, 4]


@pytest.mark.contract("H12")
def test_a_value_that_is_being_copied_counts(devices: list[jax.Device]) -> None:
    looped(lambda arg, transforms: None, 1)(jnp.zeros(WORDS + 1))
    hcb.barrier_wait()
    queue = queues[devices[0]]
    assert queue.ring is not None
    counters = queue.ring.counters
    assert queue._has_room(queue.budget // 2)
    counters.bytes_on_their_way += queue.budget
    try:
        assert not queue._has_room(queue.budget // 2)
    finally:
        counters.bytes_on_their_way -= queue.budget
    assert queue._has_room(queue.budget // 2)


@pytest.mark.contract("H12")
def test_two_threads_whose_values_have_no_room_together() -> None:
    # One of the two values goes through Python, where it waits while the other is copied, or has not run.
    steps, seen = 20, []
    with queue_budget(4 * MEBIBYTE):
        program = looped(lambda arg, transforms: seen.append(number_in(arg)), steps)
        threads = [
            threading.Thread(target=lambda first=first: program(jnp.full(3 * MEBIBYTE // 4, first)).block_until_ready())
            for first in (0.0, 1000.0)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
    for first in (0.0, 1000.0):
        assert [each for each in seen if each // 1000 == first // 1000] == [first + n for n in range(steps)]


@pytest.mark.contract("H12")
def test_a_budget_that_is_set_after_the_first_runs_of_a_program_is_that_of_its_next(devices: list[jax.Device]) -> None:
    gate, began, seen = threading.Event(), threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        began.set()
        gate.wait(DEADLINE)
        seen.append(int(arg))

    program = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: hcb.id_tap(tap, i) * 0, 0))
    gate.set()
    program(3).block_until_ready()
    hcb.barrier_wait()
    gate.clear(), began.clear(), seen.clear()
    budget, queue = 400, queues[devices[0]]
    with queue_budget(budget):
        thread = threading.Thread(target=lambda: program(1000).block_until_ready())
        thread.start()
        assert began.wait(DEADLINE)
        helpers.wait_until(lambda: queue.held() + 4 > budget)
        # One-sided: a device that goes on has this time.
        thread.join(0.1)
        most = queue.held()
        gate.set()
        thread.join(DEADLINE)
    assert most <= budget and seen == [*range(1000)]
