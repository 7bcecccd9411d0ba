"""H24: large values that are handed over in C, in blocks of memory that are used again."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers, large_values
from support.helpers import DEADLINE
from support.large_values import MEBIBYTE, WORDS, accepted, looped, number_in

import hostcb as hcb
from hostcb._native.library import MOST_INSIDE, library
from hostcb._runtime.memory import owners
from hostcb._runtime.queue import consumers, sites
from hostcb._runtime.queue.queues import queues

pytestmark = [
    pytest.mark.contract("H24"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]

nothing_is_left = large_values.nothing_is_left


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


@pytest.mark.contract("H1", "H11")
@pytest.mark.parametrize("size", [65_537, 65_536 + 4_097, 100_003, (1 << 20) + 1, (5 << 20) + 5])
def test_values_of_any_number_of_bytes_are_whole_and_stay_while_they_are_kept(size: int) -> None:
    kept: list[Any] = []
    values = [((np.arange(size) + 7 * number) % 251 + 1).astype(np.uint8) for number in range(6)]
    operands = jax.block_until_ready([jax.device_put(each) for each in values])
    program = jax.jit(lambda x: hcb.id_tap(lambda arg, _: kept.append(arg), x)[0])
    for operand in operands:
        program(operand)
    hcb.barrier_wait()
    assert [np.array_equal(*pair) for pair in zip(kept, values, strict=True)] == [True] * 6


@pytest.mark.parametrize("nbytes", [MOST_INSIDE - 1, MOST_INSIDE, MOST_INSIDE + 1])
def test_which_operands_are_too_many_for_a_record(nbytes: int) -> None:
    aval = jax.ShapeDtypeStruct((nbytes,), np.uint8)
    most = sites.MOST_IN_RECORD // nbytes
    # Larger ones are in blocks, however many.
    assert sites.suits([aval] * most) and sites.suits([aval] * (most + 1)) == (nbytes > MOST_INSIDE)


@pytest.mark.contract("H5")
@pytest.mark.parametrize("more", [0, 1])
def test_one_order_with_small_values_calls_and_values_through_python(more: int) -> None:
    record = helpers.Record()
    # The most small operands that a record has; with one more they go through Python.
    many = tuple(range(sites.MOST_IN_RECORD // MOST_INSIDE + more))

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
        np.arange(3, dtype=np.int8),
        jnp.asarray([1, -2], jnp.int4),
        jnp.asarray([1.5, -2], jnp.bfloat16),
        np.array(1 + 2j, np.complex64),
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
            assert one.flags.owndata or one.nbytes > MOST_INSIDE


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
    monkeypatch.setattr(consumers, "LINGER_SECONDS", 10 * DEADLINE)
    monkeypatch.setattr(consumers, "STEADY_SECONDS", 10 * DEADLINE)
    before = accepted(devices[0])
    for n in range(4):
        program(np.full(words, float(n), np.float32)).block_until_ready()
        helpers.wait_until(lambda n=n: len(seen) == n + 1 and queues[devices[0]].lingering)
    # The first one starts the consumer.
    assert accepted(devices[0]) >= before + 3
    hcb.stop_outfeed_receiver()
    assert seen == [0, 1, 2, 3]


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
