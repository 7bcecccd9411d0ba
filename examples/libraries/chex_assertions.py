"""`chexify` with value assertions that pass and fail, asynchronous and not, beside callbacks of the program."""

from __future__ import annotations

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax.experimental import checkify

seen: list[float] = []


def program(x: Any) -> Any:
    chex.assert_tree_all_finite(x)
    chex.assert_trees_all_close(x, x)
    jax.debug.callback(lambda x: seen.append(float(x.sum())), x, ordered=True)
    return jnp.log(x) + jax.pure_callback(lambda x: np.exp(x), x, x)


for asynchronous in (False, True):
    checked = chex.chexify(jax.jit(program), async_check=asynchronous)
    print(checked(jnp.ones(3)).round(3).tolist())
    try:
        checked(jnp.array([1.0, jnp.nan, 1.0]))
        checked.wait_checks()
    except AssertionError as error:
        print([line for line in str(error).splitlines() if "finite" in line or "nan" in line][:1])
jax.effects_barrier()
print(seen)


@functools.partial(chex.chexify, async_check=False, errors=chex.ChexifyChecks.div)
@jax.jit
def divide(x: Any) -> Any:
    jax.debug.print("dividing {}", x)
    return 1 / x


print(divide(2))
try:
    divide(0)
except checkify.JaxRuntimeError as error:
    print(error)
jax.effects_barrier()

quiet = chex.chexify(jax.jit(program), async_check=False)
quiet(jnp.ones(3))
timing.report(lambda: [quiet(jnp.ones(3)) for _ in range(50)])
