"""H11, H12, H9, X1: values on both sides of each size at which hostcb copies in another way."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from support import helpers

import hostcb as hcb
from hostcb._runtime.memory import blocks, pages

# The sizes from which on there are blocks for tapped values and for all, large pages, and copies past the caches.
SIZES = sorted({blocks.LEAST_QUEUED_BYTES - 1, blocks.LEAST_BYTES, pages.LEAST_IN_LARGE_PAGES})
WORDS = [size // 4 + more for size in SIZES for more in (-1, 0, 1)]


def is_all(array: Any, value: float) -> bool:
    return bool((np.asarray(array) == value).all())


@pytest.mark.contract("H11")
@pytest.mark.parametrize("words", WORDS)
def test_what_is_kept_stays_as_it_was(words: int) -> None:
    kept: list[Any] = []

    @jax.jit
    def program(x: Any) -> Any:
        hcb.id_tap(lambda arg, _: kept.append(arg), x)
        # A view keeps the memory, too.
        hcb.id_tap(lambda arg, _: kept.append(arg[1:][::-1]), x + 1)
        return hcb.call(lambda arg: (kept.append(arg), arg)[1], x + 2, result_shape=x)

    turns = range(4)
    outs = [program(jnp.full(words, 10.0 * turn)) for turn in turns]
    hcb.barrier_wait()
    assert all(is_all(out, 10 * turn + 2) for turn, out in zip(turns, outs, strict=True))
    for number, array in enumerate(kept):
        turn, what = divmod(number, 3)
        assert is_all(array, 10 * turn + what), f"value {number} of {words} words"


@pytest.mark.contract("H11")
@pytest.mark.parametrize("words", WORDS)
def test_what_a_function_changes_is_its_own(words: int) -> None:
    def change(arg: Any, _: Any = None) -> Any:
        arg += 100
        return arg

    @jax.jit
    def program(x: Any) -> Any:
        x = hcb.id_tap(change, x)
        return x, hcb.call(change, x, result_shape=x), hcb.pure_callback(change, x, x)

    value = jnp.full(words, 1.0)
    tapped, called, pure = program(value)
    hcb.barrier_wait()
    assert is_all(value, 1) and is_all(tapped, 1) and is_all(called, 101) and is_all(pure, 101)


@pytest.mark.contract("H9", "H11")
@pytest.mark.parametrize("words", [SIZES[0] // 4 + 1, SIZES[1] // 4])
def test_every_device_has_its_own_value(words: int, devices: list[jax.Device]) -> None:
    count = 4
    kept: dict[Any, list[Any]] = {device: [] for device in devices[:count]}
    mesh = Mesh(np.asarray(devices[:count]), "d")

    def shard(x: Any) -> Any:
        def step(_: Any, y: Any) -> Any:
            y = hcb.id_tap(lambda arg, _, device: kept[device].append(arg), y, tap_with_device=True)
            return y + count

        x = jax.lax.fori_loop(0, 5, step, x)
        return hcb.call(lambda arg: arg + 1, x, result_shape=x)

    program = jax.jit(
        jax.shard_map(shard, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"), check_vma=False)
    )
    out = program(jnp.repeat(jnp.arange(count, dtype=jnp.float32), words))
    hcb.barrier_wait()
    for number, device in enumerate(devices[:count]):
        values = [number + count * step for step in range(6)]
        assert len(kept[device]) == 5
        assert all(is_all(array, value) for array, value in zip(kept[device], values, strict=False))
        assert is_all(out[number * words : (number + 1) * words], values[-1] + 1)


@pytest.mark.contract("H12")
def test_memory_is_bounded_by_the_queues_budget(request: pytest.FixtureRequest) -> None:
    # Blocks of the native extension are of whole 16 KiB.
    words, most = SIZES[0] // 4 + 4096, 8
    request.addfinalizer(lambda: jax.config.update("jax_host_callback_max_queue_byte_size", None))
    jax.config.update("jax_host_callback_max_queue_byte_size", most * 4 * words)
    # What other tests have kept ends first.
    gc.collect()
    in_use: list[float] = []
    before = helpers.bytes_in_blocks()

    def now() -> float:
        return (helpers.bytes_in_blocks() - before) / (4 * words)

    def tap(arg: Any, _: Any) -> None:
        if not in_use:
            # The device goes on until the queue is full.
            helpers.wait_until(lambda: now() >= most)
        in_use.append(now())

    jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda _, y: hcb.id_tap(tap, y) + 1, x))(jnp.zeros(words))
    hcb.barrier_wait()
    # Beside those in the queue there may be the one that waits for room.
    assert len(in_use) == 60 and most <= max(in_use) <= most + 1
    assert now() == 0


@pytest.mark.contract("H3", "X3")
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("megabytes", [1, 32])
def test_a_result_outside_jit_is_what_the_function_returned_then(megabytes: int, committed: bool) -> None:
    """JAX 0.10.2 may copy an array of a megabyte after `jnp.array` has returned, and functions use buffers again."""
    count = megabytes << 18
    memory = np.zeros(4 * count + 128, np.uint8)
    # No multiple of 64, so that JAX cannot share the memory for ever, but only copy it late.
    begin = -memory.ctypes.data % 64 + 16
    buffer = memory[begin : begin + 4 * count].view(np.float32)
    shape = jax.ShapeDtypeStruct(buffer.shape, buffer.dtype)
    operand = jax.device_put(0.0, jax.devices()[0] if committed else None)
    for turn in range(8):
        buffer[:] = turn
        result = hcb.io_callback(lambda _: buffer, shape, operand)
        buffer[:] = -1
        assert is_all(result, turn)
        assert result.committed == committed
