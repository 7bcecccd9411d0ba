"""`debug` in one call and in two, of functions whose parameters have other types than the operands."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import hostcb as hcb

seen: list[object] = []


def show(value: NDArray[np.float32]) -> int:
    seen.append(value)
    return len(seen)


def show_two(value: NDArray[np.float32], name: str, *, step: object = None) -> None:
    seen.append((value, name, step))


def show_three(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> None:
    seen.append(a + b + c)


def program(x: jax.Array) -> None:
    hcb.debug.callback(show, x)
    hcb.debug.callback(show_two, x, "x")
    hcb.debug.callback(show_two, x, name="x", step=2)
    hcb.debug.callback(show_two, x, "x", ordered=True, step=2)
    hcb.debug.callback(show_three, x, x, x)
    hcb.debug.callback(lambda: None)
    hcb.debug.callback(lambda value: seen.append(value), x, partitioned=True)
    hcb.debug.callback(lambda value, step: seen.append(value), x, step=x)
    hcb.debug.callback(functools.partial(show_two, name="x"), x)
    hcb.debug.callback(print, x)
    # A keyword operand has the type of its parameter, unless the options are in the first of two calls.
    hcb.debug.callback(ordered=True)(show_two, x, name="x", step=x)
    hcb.debug.callback(on_error="log")(show_two, x, "x")
    hcb.debug.print("{} {name}", x, name="x")
    hcb.debug.print(ordered=True)("{x}", x=x)
    hcb.debug.print(ordered=True, on_error="next_dispatch")("{x}", x=x)


jax.jit(program)(jnp.ones(2))
hcb.barrier_wait()
assert len(seen) == 10, seen
