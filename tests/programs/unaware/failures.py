"""Functions that fail: which error the program catches, and what is logged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import debug
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from .running import attempt

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
ONE = jnp.float32(1)

CALLS: dict[str, Callable[..., Any]] = {
    "pure_callback": lambda function, x: jax.pure_callback(function, NUMBER, x),
    "io_callback": lambda function, x: io_callback(function, NUMBER, x),
    "io_callback_ordered": lambda function, x: io_callback(function, None, x, ordered=True),
    "debug_callback": lambda function, x: debug.callback(function, x),
    "debug_callback_ordered": lambda function, x: debug.callback(function, x, ordered=True),
}


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fails(*args: Any) -> Any:
        raise error("planted")

    return fails


def with_error(call: Callable[..., Any], error: type[BaseException]) -> Callable[[], None]:
    def program() -> None:
        function = raising(error)
        attempt(lambda x: call(function, x), ONE)
        jitted = jax.jit(lambda x: call(function, x))
        attempt(jitted, ONE)
        attempt(jitted, ONE)
        with jax.disable_jit():
            attempt(jitted, ONE)

    return program


def under_vmap() -> None:
    fails = raising(ValueError)
    attempt(jax.vmap(lambda x: debug.callback(fails, x)), jnp.arange(3.0))
    for method in ("sequential", "expand_dims"):
        attempt(jax.vmap(lambda x, m=method: jax.pure_callback(fails, NUMBER, x, vmap_method=m)), jnp.arange(3.0))


def goes_on() -> None:
    calls: list[None] = []

    def every_second(x: Any) -> Any:
        calls.append(None)
        if len(calls) % 2:
            raise ValueError("planted")
        return x

    jitted = jax.jit(lambda x: jax.pure_callback(every_second, NUMBER, x))
    for _ in range(4):
        attempt(jitted, ONE)


def wrong_arguments() -> None:
    for function in (lambda: np.float32(1), lambda x, y: x):
        for call in CALLS.values():
            attempt(lambda x, function=function, call=call: call(function, x), ONE)
            attempt(jax.jit(lambda x, function=function, call=call: call(function, x)), ONE)


def of_buffers() -> None:
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    for has_side_effect in (False, True):
        call = functools.partial(buffer_callback, has_side_effect=has_side_effect)
        for function in (raising(ValueError), lambda context, out, x: 3):
            attempt(jax.jit(call(function, shape)), jnp.ones(2))
            attempt(call(function, shape), jnp.ones(2))


def operands() -> None:
    for operand in ("text", object(), [1, "t"], 2**70, np.array(["a"])):
        attempt(lambda operand=operand: jax.pure_callback(lambda x: np.float32(1), NUMBER, operand))


def gone_on_to_write() -> None:
    """An operand is not the function's: it may not be written to."""

    def writes(x: Any) -> Any:
        np.asarray(x)[...] = 5
        return x

    attempt(jax.jit(lambda x: jax.pure_callback(writes, NUMBER, x)), ONE)
    attempt(lambda x: debug.callback(writes, x), ONE)


PROGRAMS = {
    **{
        f"{name}_{error.__name__}": with_error(call, error)
        for name, call in CALLS.items()
        for error in (ValueError, KeyError, SystemExit)
    },
    "under_vmap": under_vmap,
    "goes_on": goes_on,
    "wrong_arguments": wrong_arguments,
    "of_buffers": of_buffers,
    "operands": operands,
    "gone_on_to_write": gone_on_to_write,
}
