"""hostcb's names of the classes of buffer callbacks are annotations, also of a user's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb as hcb

SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)


def view(buffer: hcb.Buffer) -> np.ndarray[Any, np.dtype[Any]]:
    assert buffer.shape == (3,) and buffer.dtype == np.float32
    return np.asarray(buffer)


def fill(ctx: hcb.ExecutionContext, out: hcb.Buffer, x: hcb.Buffer) -> None:
    assert isinstance(ctx, hcb.ExecutionContext) and isinstance(x, hcb.Buffer) and out.writeable
    if ctx.stage is hcb.ExecutionStage.EXECUTE:
        view(out)[...] = np.from_dlpack(x)


def fill_two(ctx: object, out: tuple[hcb.Buffer, hcb.Buffer], x: hcb.Buffer, *, scale: hcb.Buffer) -> None:
    for each in out:
        np.multiply(np.asarray(x), np.asarray(scale), out=np.asarray(each))


def fill_any(ctx: hcb.ExecutionContext, *buffers: hcb.Buffer) -> None:
    np.asarray(buffers[0])[...] = 0


def double(x: hcb.Buffer) -> np.ndarray[Any, np.dtype[Any]]:
    return 2 * np.asarray(x)


def copy_in_place(out: Any, x: Any, *, stream: int | None) -> None:
    np.from_dlpack(out)[...] = np.from_dlpack(x)


filled: Callable[[jax.Array], jax.Array] = hcb.buffer_callback(fill, SHAPE, vmap_method="sequential")
both = hcb.buffer_callback(fill_two, (SHAPE, SHAPE), has_side_effect=True)
zeros = hcb.buffer_callback(fill_any, SHAPE, input_output_aliases={0: 0})
doubled = hcb.dlpack_callback(double, lambda x: x)
in_place = hcb.dlpack_callback(copy_in_place, SHAPE, in_place=True, with_stream=True)
x = jnp.ones(3)
first, second = jax.jit(both)(x, scale=x)
jax.block_until_ready((filled(x), first, second, zeros(x), doubled(x), in_place(x)))
