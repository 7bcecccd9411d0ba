"""A shape gives an array; another tree has a type that its user knows."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import hostcb as hcb

SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)


def same(value: NDArray[np.float32]) -> NDArray[np.float32]:
    return value.copy()


def same_on(value: NDArray[np.float32], *, device: Any) -> NDArray[np.float32]:
    return same(value) + np.float32(device.id)


def scaled(value: NDArray[np.float32], scale: float = 1.0) -> NDArray[np.float32]:
    return np.float32(scale) * value


def two(value: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return value, 2 * value


def without_last(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[:-1], x.dtype)


def log(value: NDArray[np.float32]) -> None: ...


@hcb.jax_arrays
def clipped(value: jax.Array, least: float = 0.0) -> jax.Array:
    return jnp.clip(value, least)


def program(x: jax.Array) -> jax.Array:
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    y = hcb.call(same, x, result_shape=SHAPE)
    assert_type(y, jax.Array)
    assert_type(hcb.call(same, x, result_shape=y, vmap_method="sequential"), jax.Array)
    assert_type(hcb.call(lambda value: value.sum(), x, result_shape=0.0), jax.Array)
    assert_type(hcb.call(same_on, x, result_shape=SHAPE, call_with_device=True), jax.Array)
    one: jax.Array
    other: jax.Array
    one, other = hcb.call(two, x, result_shape=(x, x))
    sums: jax.Array = hcb.call(lambda value: value.sum(-1), x, result_shape=without_last)
    named_sums: dict[str, jax.Array] = hcb.pure_callback(
        lambda name, x: {name: x}, lambda name, x: {name: x}, "sum", sums
    )
    total: jax.Array = hcb.io_callback(lambda name, x: x, lambda name, x: x, "name", named_sums["sum"])
    hcb.id_tap(lambda value, transforms: None, ("name", len, total))
    hcb.call(log, x)
    z = hcb.pure_callback(scaled, x, x, vmap_method="legacy_vectorized", scale=2.0)
    assert_type(z, jax.Array)
    assert_type(hcb.pure_callback(clipped, x, x), jax.Array)
    named: dict[str, jax.Array] = hcb.pure_callback(lambda x: {"sum": x.sum()}, {"sum": scalar}, x)
    assert_type(hcb.io_callback(same, SHAPE, x, ordered=True), jax.Array)
    hcb.io_callback(log, None, x)
    return one + other + y + z.sum() + named["sum"]


def forwarded(x: jax.Array, shape: Any) -> jax.Array:
    result: jax.Array = hcb.pure_callback(same, shape, x)
    return result


assert_type(clipped(jnp.ones(2), least=0.5), jax.Array)
jax.jit(program)(jnp.ones(2))
forwarded(jnp.ones(2), SHAPE)
hcb.barrier_wait()
