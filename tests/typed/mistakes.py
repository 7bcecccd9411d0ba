"""Calls that hostcb refuses, or that fail in the host. Each marked line is an error for type checkers, and no other.

The mark says what is wrong.
"""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import hostcb as hcb

x = jnp.ones(3)


def tap(value: object, transforms: object) -> None: ...
def device_tap(value: object, transforms: object, *, device: Any) -> None: ...
def listed(value: object, transforms: list[str]) -> None: ...
def two(a: int, b: int) -> int: ...  # type: ignore[empty-body]
def norm(value: NDArray[np.float32]) -> NDArray[np.float32]: ...  # type: ignore[empty-body]
def fill(ctx: hcb.ExecutionContext, out: hcb.Buffer, x: hcb.Buffer) -> None: ...
def returning(ctx: hcb.ExecutionContext, out: hcb.Buffer) -> int: ...  # type: ignore[empty-body]
async def coroutine(value: object, transforms: object) -> None: ...
@hcb.jax_arrays
def scaled(x: jax.Array, scale: float = 1.0) -> jax.Array: ...  # type: ignore[empty-body]


hcb.id_tap(3, x)  # error: no function
hcb.id_tap(lambda value: None, x)  # error: a tap gets the transforms
hcb.id_tap(listed, x)  # error: the transforms are a tuple
hcb.id_tap(coroutine, x)  # error: a coroutine function
hcb.id_tap(coroutine, x) + 1  # error: a coroutine function
hcb.id_tap(coroutine, x, tap_with_device=True)  # error: a coroutine function
hcb.id_tap(tap, x, lr=0.1)  # error: an unknown argument
hcb.id_tap(tap, x, device_index="0")  # error: no number
hcb.id_tap(tap, x, tap_with_device=True)  # error: the tap takes no device
hcb.id_tap(device_tap, x)  # error: the tap takes a device
hcb.id_tap(tap, (x, x)).shape  # error: the result is the pair
hcb.id_tap(tap, x, result=(x, x)).shape  # error: the result is the pair
hcb.id_tap(tap, x, on_error="raise")  # error: no policy
hcb.id_print(x, on_error=None)  # error: no policy
hcb.id_print(x, output_stream=3)  # error: no stream
hcb.id_print((x, x)).shape  # error: the result is the pair

hcb.call(norm, x, result_shape=x, vmap_method="all")  # error: no method
hcb.call(norm, x, result_shape=x, vmap_method="legacy_vectorized")  # error: a method of JAX's own callbacks
hcb.call(two, x, result_shape=x)  # error: one argument
hcb.call(norm, x, result_shape=x, call_with_device=True)  # error: the function takes no device
hcb.call(norm, x, result_shape=x).shapes  # error: the result is an array
hcb.call(norm, x, shape=x)  # error: an unknown argument

hcb.pure_callback(norm, x, x, vmap_method="sequental")  # error: no method
hcb.pure_callback(norm, x, x, sharding=3)  # error: no sharding
hcb.pure_callback(norm)  # error: no shape
hcb.pure_callback(norm, x, x).shapes  # error: the result is an array
hcb.io_callback(3, x)  # error: no function
hcb.io_callback(norm, x, x, ordered="no")  # error: no truth value

hcb.debug.callback(two, 1)  # error: an argument is missing
hcb.debug.callback(two, 1, c=2)  # error: another name
hcb.debug.callback(3)  # error: no function
hcb.debug.callback(x=3)  # error: no function
hcb.debug.callback(two, 1, 2, ordered="no")  # error: no truth value
hcb.debug.callback(on_error="raise")(two, 1, 2)  # error: no policy
hcb.debug.print(3)  # error: no text
hcb.debug.print(ordered=True)(3)  # error: no text

hcb.jax_arrays(3)  # error: no function
scaled(x, scales=2.0)  # error: another name
scaled("x")  # error: no array

hcb.buffer_callback(lambda ctx: None, x)  # error: no results
hcb.buffer_callback(returning, x)  # error: a result
hcb.buffer_callback(fill, x, vmap_method="all")  # error: no method
hcb.buffer_callback(fill, x, input_output_aliases={"x": 0})  # error: no number
hcb.dlpack_callback(norm, x, vmap_method="all")  # error: no method
hcb.dlpack_callback(norm, x, stream=True)  # error: an unknown argument
fill(x, x, x)  # error: no context and no buffers
hcb.ExecutionStage.EXECUTED  # error: no stage

hcb.barrier_wait(timeout="1")  # error: no seconds
hcb.trace(3)  # error: no path
hcb.stats().tap  # error: of a device
assert_type(hcb.id_tap(tap, x), np.ndarray)  # error: the result is JAX's
