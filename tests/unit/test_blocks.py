"""H11, X1: large operands get memory that is used again, and never while anything still refers to it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hostcb as hcb
from hostcb._runtime.memory import blocks
from hostcb._runtime.memory.blocks import LEAST_BYTES, MOST_READY, Blocks

SIZE = LEAST_BYTES // 4


def source(value: int, size: int = SIZE) -> np.ndarray:
    return np.full(size, value, np.float32)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_nobody_has_it() -> None:
    blocks = Blocks()
    first = blocks.copy(source(1))
    where = address(first)
    del first
    assert address(blocks.copy(source(2))) == where


HOLDERS: dict[str, Any] = {
    "itself": lambda array: array,
    "slice": lambda array: array[3:5],
    "reshaped transposed": lambda array: array.reshape(2, -1).T,
    "other dtype": lambda array: array.view(np.int32)[::2],
    "memoryview": memoryview,
    "bytes in between": lambda array: np.frombuffer(memoryview(array), np.uint8),
    "dlpack": np.from_dlpack,
    "iterator": lambda array: array.flat,
    "in a list of lists": lambda array: [[array]],
    "closure": lambda array: lambda: array,
    "base": lambda array: array.base,
    "what the base is made of": lambda array: array.base.base,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_memory_that_somebody_has_is_left_alone(holder: Any) -> None:
    blocks = Blocks()
    first = blocks.copy(source(1))
    where = address(first)
    held = holder(first)
    del first
    gc.collect()
    others = [blocks.copy(source(2)) for _ in range(3)]
    assert where not in map(address, others)
    del held


def test_what_was_put_on_a_device_stays_as_it_was() -> None:
    # JAX takes memory of NumPy's as it is where it can, and copies it some time later where it cannot.
    blocks = Blocks()
    put = [jax.device_put(blocks.copy(source(n)), may_alias=True) for n in range(8)]
    assert [set(np.asarray(each).tolist()) for each in put] == [{n} for n in range(8)]


@pytest.mark.parametrize("dtype", [np.bool_, np.complex64, ml_dtypes.bfloat16, np.int8, np.float64])
def test_every_type_and_shape_is_copied_as_it_is(dtype: Any) -> None:
    blocks = Blocks()
    for _ in range(2):
        given = np.arange(LEAST_BYTES).astype(dtype).reshape(4, -1, 2)
        copy = blocks.copy(given)
        np.testing.assert_array_equal(copy, given)
        assert (copy.dtype, copy.shape) == (given.dtype, given.shape)
        assert copy.flags.writeable and copy.flags.c_contiguous
        del copy


def test_what_lies_ready_is_bounded() -> None:
    blocks = Blocks()
    count = 2 * MOST_READY // LEAST_BYTES
    kept = [blocks.copy(source(n)) for n in range(count)]
    assert blocks.ready_bytes == 0, "what is in use does not lie ready"
    values = [int(array[0]) for array in kept]
    assert values == list(range(count))
    kept.clear()
    assert blocks.ready_bytes == MOST_READY
    blocks.clear()
    assert blocks.ready_bytes == 0
    blocks.copy(np.zeros(MOST_READY + 1, np.uint8))
    assert blocks.ready_bytes == 0, "what is larger than the bound is let go"


def test_sizes_that_are_used_no_longer_make_room() -> None:
    blocks = Blocks()
    kept = [blocks.copy(source(n)) for n in range(MOST_READY // LEAST_BYTES)]
    kept.clear()
    large = MOST_READY // 2
    blocks.copy(np.ones(large, np.uint8))
    # Not its address: the C library may give freed memory of this size out again.
    assert len(blocks._ready[large]) == 1 and blocks.ready_bytes == MOST_READY
    # One as large as the bound takes all of it.
    blocks.copy(np.zeros(MOST_READY, np.uint8))
    assert len(blocks._ready[MOST_READY]) == 1 and blocks.ready_bytes == MOST_READY
    # What is larger than the bound takes no room.
    blocks.copy(np.zeros(MOST_READY + 1, np.uint8))
    assert blocks.ready_bytes == MOST_READY


def test_another_thread_takes_the_last_block_while_room_is_made() -> None:
    class TakenMeanwhile(list[np.ndarray]):
        def pop(self, index: Any = -1) -> np.ndarray:
            self.clear()
            return super().pop(index)

    blocks = Blocks()
    blocks._ready[LEAST_BYTES] = taken = TakenMeanwhile([np.zeros(LEAST_BYTES, np.uint8)])
    # One as large as the bound needs the room of all others.
    blocks.copy(np.zeros(MOST_READY, np.uint8))
    assert not taken and blocks.ready_bytes == MOST_READY


def test_as_many_blocks_exist_as_are_in_use_at_a_time() -> None:
    blocks, waiting, seen = Blocks(), [], set()
    for n in range(100):
        waiting.append(blocks.copy(source(n)))
        seen.add(address(waiting[-1]))
        if len(waiting) == 20:
            # The one that has waited longest, as a queue does it.
            del waiting[0]
    assert len(seen) == 20


def test_threads_never_get_the_same_memory() -> None:
    blocks = Blocks()
    start = threading.Barrier(4)
    wrong: list[str] = []

    def work(number: int) -> None:
        start.wait(10)
        for turn in range(60):
            value = 1000 * number + turn
            array = blocks.copy(source(value))
            other = blocks.copy(source(-value))
            if not ((array == value).all() and (other == -value).all()):
                wrong.append(f"thread {number} in turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


@pytest.mark.contract("H11")
def test_what_taps_and_calls_keep_never_changes() -> None:
    kept: list[Any] = []

    @jax.jit
    def program(x: Any) -> Any:
        hcb.id_tap(lambda arg, _: kept.append(arg), x)
        hcb.io_callback(lambda arg: kept.append(arg[::2]), None, x + 1, ordered=True)
        return hcb.call(lambda arg: (kept.append(arg), arg * 2)[1], x + 2, result_shape=x)

    for turn in range(5):
        out = program(jnp.full(SIZE, 10.0 * turn))
        assert (np.asarray(out) == 2 * (10 * turn + 2)).all()
        hcb.barrier_wait()
    assert [set(array.ravel().tolist()) for array in kept] == [{10 * t + n} for t in range(5) for n in (0, 1, 2)]


def test_a_result_that_is_the_operand_stays_right() -> None:
    program = jax.jit(lambda x: hcb.pure_callback(lambda a: a, x, x))
    outs = [program(jnp.full(SIZE, n, jnp.float32)) for n in range(6)]
    assert [set(np.asarray(out).tolist()) for out in outs] == [{n} for n in range(6)]


def test_stop_gives_the_memory_back() -> None:
    hcb.call(lambda arg: arg, jnp.zeros(SIZE), result_shape=jax.ShapeDtypeStruct((SIZE,), np.float32))
    hcb.stop_outfeed_receiver()
    assert blocks.blocks.ready_bytes == 0
