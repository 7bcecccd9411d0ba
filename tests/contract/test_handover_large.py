"""H24: large values that are handed over in C, in blocks of memory that are used again."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import DEADLINE
from subprocesses import run_program

import hostcb as hcb
from hostcb._native.library import MOST_BYTES, library
from hostcb._runtime import consumers, owners, sites
from hostcb._runtime.queues import queues

pytestmark = [
    pytest.mark.contract("H24"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]

BUDGET = "jax_host_callback_max_queue_byte_size"
WORDS = MOST_BYTES // 4
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
    assert ready == 0 and owners.mapped() == (before, 0)
    for queue in queues.all():
        assert queue.ring is None or queue.ring.counters.in_blocks == queue.ring.counters.bytes == 0


def accepted(device: Any) -> int:
    ring = queues[device].ring
    return 0 if ring is None else int(ring.counters.accepted)


def looped(function: Any, steps: int, **options: Any) -> Any:
    """A program that taps `x, x + 1, …` in a loop."""

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(function, x, **options) + 1

    return jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, x))


def number_in(array: Any) -> float:
    """The number that is everywhere in an array."""
    first = array.flat[0]
    assert (array == first).all(), "a value that is not whole"
    return float(first)


@pytest.mark.contract("H5", "H11")
@pytest.mark.parametrize("words", [WORDS + 1, 1 << 16, MEBIBYTE // 4 - 1, MEBIBYTE, 2 * MEBIBYTE + 1])
def test_values_are_whole_and_those_that_are_kept_stay(words: int, devices: list[jax.Device]) -> None:
    steps, seen, kept = 12, [], []

    def tap(arg: Any, transforms: Any) -> None:
        seen.append(number_in(arg))
        assert arg.shape == (words,) and arg.flags.writeable
        if len(seen) % 4 == 1:
            # A view keeps the memory too, and what is written to it is not seen by others.
            arg[-1] = -1
            kept.append(arg[1:])

    program = looped(tap, steps)
    program(jnp.zeros(words)).block_until_ready()
    before = accepted(devices[0])
    program(np.full(words, float(steps), np.float32)).block_until_ready()
    assert accepted(devices[0]) == before + steps
    hcb.barrier_wait()
    assert seen == [float(n) for n in range(2 * steps)]
    assert [(number_in(array[:-1]), array[-1]) for array in kept] == [(n, -1) for n in range(0, 2 * steps, 4)]


def test_a_large_tap_does_not_wait_for_the_interpreter_lock(devices: list[jax.Device]) -> None:
    # The queue has room for all of them.
    steps, seen = 1000, []
    program = looped(lambda arg, transforms: seen.append(float(arg[0])), steps)
    words = WORDS + 16
    program(jnp.zeros(words)).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    ring = queues[devices[0]].ring
    assert ring is not None
    counters = ring.counters
    # A PyDLL keeps the interpreter lock: no other thread runs Python meanwhile.
    wait = ctypes.PyDLL(None).usleep
    before = counters.accepted
    thread = threading.Thread(target=lambda: program(jnp.zeros(words)).block_until_ready())
    thread.start()
    while counters.accepted == before:
        pass
    start = counters.accepted
    wait(50_000)
    taken = counters.accepted - start
    thread.join()
    hcb.barrier_wait()
    assert seen == [float(n) for n in range(steps)]
    assert taken > 20 or start - before > steps // 2, f"{taken} taps were handed over while Python was locked"


@pytest.mark.contract("C62")
@pytest.mark.parametrize("nbytes", [MOST_BYTES - 1, MOST_BYTES, MOST_BYTES + 1])
def test_which_operands_are_too_many_for_a_record(nbytes: int) -> None:
    aval = jax.ShapeDtypeStruct((nbytes,), np.uint8)
    most = sites.MOST_IN_RECORD // nbytes
    # Larger ones are in blocks, however many.
    assert sites.suits([aval] * most) and sites.suits([aval] * (most + 1)) == (nbytes > MOST_BYTES)


@pytest.mark.contract("H5", "C62")
@pytest.mark.parametrize("more", [0, 1])
def test_one_order_with_small_values_calls_and_values_through_python(more: int) -> None:
    record = helpers.Record()
    # The most small operands that a record has; with one more they go through Python.
    many = tuple(range(sites.MOST_IN_RECORD // MOST_BYTES + more))

    def program(x: Any) -> Any:
        large = jnp.full(WORDS + 1, x)
        large = hcb.id_tap(record.labelled("large"), large)
        x = hcb.id_tap(record.labelled("small"), x + large[0] * 0)
        x = hcb.call(record.caller("call"), x, result_shape=x)
        pieces = hcb.id_tap(record.labelled("pieces"), tuple(jnp.full(WORDS, x + n) for n in many))
        large = hcb.id_tap(record.labelled("large"), jnp.full(WORDS + 1, pieces[0][0]))
        return large[0]

    compiled = jax.jit(program)
    for n in range(6):
        compiled(jnp.float32(n))
        hcb.id_tap(record.labelled("eager"), np.full(WORDS + 2, n, np.float32))
    hcb.barrier_wait()
    assert record.labels == ["large", "small", "call", "pieces", "large", "eager"] * 6
    first = [seen.arg[0] if seen.label == "pieces" else seen.arg for seen in record.all]
    assert [number_in(np.asarray(arg)) for arg in first] == [float(n) for n in range(6) for _ in range(6)]


def test_large_and_small_operands_of_one_tap() -> None:
    seen: list[Any] = []
    operands = (
        np.float32(2.5),
        np.arange(WORDS + 5, dtype=np.int32),
        np.zeros((0, 3), np.float32),
        jnp.arange(4 * WORDS + 2, dtype=jnp.bfloat16),
        np.arange(WORDS, dtype=np.float32),
        jnp.ones(5 * WORDS, jnp.int4),
        np.array([True, False]),
        np.full((3, WORDS), 1 + 2j, np.complex64),
    )
    program = jax.jit(lambda *x: hcb.id_tap(lambda arg, transforms: seen.append(arg), x))
    for _ in range(4):
        program(*operands)
    hcb.barrier_wait()
    assert len(seen) == 4
    for got in seen:
        for one, other in zip(got, operands, strict=True):
            assert type(one) is np.ndarray and one.flags.writeable
            helpers.equal(one, np.asarray(other), "operand")
        # Who keeps a small array does not keep the memory of a large one.
        assert got[0].flags.owndata and got[4].flags.owndata


@pytest.fixture
def small_budget() -> Iterator[int]:
    hcb.barrier_wait()
    budget = 4 * MEBIBYTE
    jax.config.update(BUDGET, budget)
    yield budget
    hcb.barrier_wait()
    jax.config.update(BUDGET, None)


@pytest.mark.contract("H12")
@pytest.mark.parametrize("kibibytes", [80, 256, 1024])
def test_a_slow_consumer_holds_no_more_than_the_budget(
    kibibytes: int, small_budget: int, devices: list[jax.Device]
) -> None:
    held, values = [], []

    def tap(arg: Any, transforms: Any) -> None:
        mapped, ready = owners.mapped()
        held.append(mapped - ready)
        if len(values) == 1:
            # The device goes on until the queue is full, and then waits.
            queue = queues[devices[0]]
            helpers.wait_until(lambda: queue.held() + arg.nbytes > small_budget)
        values.append(number_in(arg))

    steps = 3 * small_budget // (kibibytes << 10)
    looped(tap, steps)(jnp.zeros(kibibytes << 8)).block_until_ready()
    hcb.barrier_wait()
    assert values == list(range(steps))
    assert max(held) <= small_budget, "the memory of all values is more than the budget"
    # The functions of values that wait through Python have the same memory.
    assert owners.mapped()[0] <= small_budget


@pytest.mark.contract("H12")
def test_a_value_larger_than_the_budget_goes_alone(small_budget: int) -> None:
    seen: list[float] = []
    program = looped(lambda arg, transforms: seen.append(number_in(arg)), 4)
    program(jnp.zeros(small_budget // 4 + 1)).block_until_ready()
    hcb.barrier_wait()
    assert seen == [0, 1, 2, 3]


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


@pytest.mark.contract("H11")
def test_a_large_value_wakes_a_consumer_that_sleeps_on(
    monkeypatch: pytest.MonkeyPatch, devices: list[jax.Device]
) -> None:
    seen: list[float] = []
    words = MEBIBYTE // 4
    program = looped(lambda arg, transforms: seen.append(float(arg[0])), 1)
    program(jnp.zeros(words)).block_until_ready()
    hcb.stop_outfeed_receiver()
    seen.clear()
    monkeypatch.setattr(consumers, "LINGER", 10 * DEADLINE)
    monkeypatch.setattr(consumers, "STEADY", 10 * DEADLINE)
    before = accepted(devices[0])
    for n in range(4):
        program(np.full(words, float(n), np.float32)).block_until_ready()
        helpers.wait_until(lambda n=n: len(seen) == n + 1 and queues[devices[0]].lingering)
    # The first one starts the consumer.
    assert accepted(devices[0]) >= before + 3
    hcb.stop_outfeed_receiver()
    assert seen == [0, 1, 2, 3]


@pytest.mark.contract("H18")
def test_values_of_a_dropped_executable_arrive() -> None:
    gate, seen = threading.Event(), []

    def tap(arg: Any, transforms: Any) -> None:
        gate.wait(DEADLINE)
        seen.append(number_in(arg))

    gate.set()
    program = looped(tap, 20)
    program(jnp.zeros(WORDS + 1)).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    gate.clear()
    program(jnp.zeros(WORDS + 1)).block_until_ready()
    del program
    jax.clear_caches()
    gc.collect()
    assert sites.leaving, "the executable should have ended, with values in the ring"
    gate.set()
    hcb.barrier_wait()
    assert seen == [float(n) for n in range(20)]


@pytest.mark.contract("H9")
def test_every_device_has_its_own_values(devices: list[jax.Device]) -> None:
    seen: dict[Any, list[float]] = {device: [] for device in devices}

    def tap(arg: Any, transforms: Any, device: Any) -> None:
        seen[device].append(number_in(arg))

    def program(x: Any) -> Any:
        step = lambda _, x: hcb.id_tap(tap, x, tap_with_device=True) + 1
        return jax.lax.fori_loop(0, 20, step, x)

    mapped = jax.pmap(program)
    start = np.repeat(np.arange(len(devices), dtype=np.float32)[:, None] * 100, WORDS + 1, axis=1)
    for _ in range(2):
        jax.block_until_ready(mapped(start))
    hcb.barrier_wait()
    for number, device in enumerate(devices):
        assert seen[device] == [100 * number + n for n in range(20)] * 2


class Interrupted(BaseException):
    """What Ctrl-C may raise between any two steps."""


@pytest.mark.contract("H5", "H12")
@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_while_an_item_is_made_loses_nothing(
    nested: bool, monkeypatch: pytest.MonkeyPatch, devices: list[jax.Device]
) -> None:
    """In the middle of the hand-over of each block: the value stays, or a finalizer runs it there."""
    seen: list[Any] = []

    def tap(arg: Any, transforms: Any) -> None:
        seen.append([number_in(each) for each in arg])

    step = lambda _, x: tuple(each + 1 for each in hcb.id_tap(tap, x))
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 3, step, x))
    x = (jnp.zeros(WORDS + 1), jnp.zeros(MEBIBYTE // 4))
    jax.block_until_ready(program(x))
    hcb.stop_outfeed_receiver()
    seen.clear()
    queue = queues[devices[0]]
    ring = queue.ring
    assert ring is not None
    over, left = owners.Shape.over, [2]

    def interrupted(self: Any, owner: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if nested:
                queue._run_oldest()
            else:
                raise Interrupted
        return over(self, owner)

    # Without a consumer, so that this thread does the work.
    monkeypatch.setattr(queue, "_wake", lambda: None)
    ring.attend(True)
    jax.block_until_ready(program(x))
    assert ring.counters.values == 3
    monkeypatch.setattr(owners.Shape, "over", interrupted)
    if nested:
        queue.drain()
    else:
        with pytest.raises(Interrupted):
            queue.drain()
        assert not seen and ring.counters.values == 3
        queue.drain()
    ring.attend(False)
    assert seen == [[float(n)] * 2 for n in range(3)]


FORKING = """
from hostcb._runtime import owners
from hostcb._runtime.queues import queues
seen, gate = [], threading.Event()

def tap(arg, transforms):
    gate.wait(60)
    seen.append(float(arg[0]))

program = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: hcb.id_tap(tap, x) + 1, x))
x = jnp.zeros(1 << 18)
gate.set()
program(x).block_until_ready()
hcb.barrier_wait()
kept = []
jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: kept.append(arg), x))(x + 5).block_until_ready()
hcb.barrier_wait()
gate.clear()
program(x).block_until_ready()
child = os.fork()
if child == 0:
    code = 1
    try:
        mapped, ready = owners.mapped()
        # The parent's values are gone, also the one whose function has begun in a thread that the child has not.
        assert mapped == ready, (mapped, ready)
        assert (kept[0] == 5).all() and len(seen) == 10
        # The array that is kept is whole, and its memory is the child's when it ends.
        kept.clear()
        assert owners.mapped() == (mapped + (1 << 20), ready + (1 << 20)), owners.mapped()
        code = 0
    finally:
        os._exit(code)
status = os.waitpid(child, 0)[1]
gate.set()
hcb.barrier_wait()
assert os.waitstatus_to_exitcode(status) == 0
assert (kept[0] == 5).all() and seen == [float(n) for n in range(10)] * 2
hcb.stop_outfeed_receiver()
kept.clear()
print(json.dumps(owners.mapped()[0] - owners.mapped()[1]))
"""


@pytest.mark.contract("H17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_drops_the_values_of_its_parent() -> None:
    assert run_program("import os\n" + FORKING, devices=None, env={"HOSTCB_NATIVE": "1"}, timeout=60).json() == 0


@pytest.mark.contract("H17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_none_of_its_parents_blocks_in_python() -> None:
    source = """
from hostcb._runtime.blocks import blocks
gate, began, kept = threading.Event(), threading.Event(), []

def tap(arg, transforms):
    began.set()
    gate.wait(60)

program = jax.jit(lambda x: hcb.id_tap(tap, x))
jax.jit(lambda x: hcb.call(lambda arg: kept.append(arg), x))(jnp.full(1 << 18, 5.0))
program(jnp.zeros(1 << 18))
began.wait(60)
# Those of the array that is kept, and of the function that has begun.
assert len(blocks._lent) == 2, blocks._lent
child = os.fork()
if child == 0:
    code = 1
    try:
        assert not blocks._lent and (kept[0] == 5).all()
        kept.clear()
        assert (blocks.copy(np.ones(1 << 20)) == 1).all() and not blocks._lent
        code = 0
    finally:
        os._exit(code)
status = os.waitpid(child, 0)[1]
gate.set()
hcb.barrier_wait()
assert os.waitstatus_to_exitcode(status) == 0
kept.clear()
print(json.dumps(len(blocks._lent)))
"""
    ended = run_program(source, devices=None, env={"HOSTCB_NATIVE": "0"}, timeout=60, warnings="ignore")
    assert ended.json() == 0


@pytest.mark.contract("H5")
def test_a_barrier_finds_a_small_value_while_another_thread_hands_over_large_ones(devices: list[jax.Device]) -> None:
    seen: list[float] = []
    small = looped(lambda arg, transforms: seen.append(float(arg[0])), 1)
    large = looped(lambda arg, transforms: None, 5)
    start = jnp.zeros(MEBIBYTE)
    small(jnp.zeros(2)).block_until_ready()
    large(start).block_until_ready()
    hcb.barrier_wait()
    seen.clear()
    ring = queues[devices[0]].ring
    assert ring is not None
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            large(start).block_until_ready()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for n in range(20):
            small(np.full(2, n, np.float32)).block_until_ready()
            hcb.barrier_wait()
            assert seen == [float(k) for k in range(n + 1)]
    finally:
        ended.set()
        thread.join()


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
    jax.config.update(BUDGET, 4 * MEBIBYTE)
    steps, seen = 20, []
    try:
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
        hcb.barrier_wait()
    finally:
        jax.config.update(BUDGET, None)
    for first in (0.0, 1000.0):
        assert [each for each in seen if each // 1000 == first // 1000] == [first + n for n in range(steps)]
