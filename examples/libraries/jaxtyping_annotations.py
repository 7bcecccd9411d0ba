"""Functions of callbacks with annotations that beartype checks: `Float[jax.Array, "n"]` and so on."""

# The annotations are of jaxtyping.
# ruff: noqa: F722
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import timing
from beartype import beartype
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int, TypeCheckError, jaxtyped

checked = jaxtyped(typechecker=beartype)
seen: list[Any] = []


@checked
def host(x: Float[Array, " n"], y: Float[Array, "n n"]) -> Float[Array, " n"]:
    return y @ x


@checked
def note(count: Int[Array, ""]) -> None:
    seen.append(int(count))


@checked
def wants_a_matrix(x: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return x


@jax.jit
@checked
def program(x: Float[Array, " n"], y: Float[Array, "n n"]) -> Float[Array, " n"]:
    z = jax.pure_callback(host, x, x, y)
    jax.debug.callback(note, jnp.int32(len(x)), ordered=True)
    return z + io_callback(host, x, x, y)


print(program(jnp.ones(3), jnp.eye(3)).tolist())
jax.effects_barrier()
print(seen)
try:
    program(jnp.ones(3), jnp.eye(4))
except TypeCheckError as error:
    print(type(error).__name__, "y: Float[Array, 'n n']" in str(error) or "parameter" in str(error))
try:
    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(wants_a_matrix, x, x))(jnp.ones(3)))
except jax.errors.JaxRuntimeError as error:
    print("TypeCheckError" in str(error))

assert program(jnp.zeros(2), jnp.zeros((2, 2))).tolist() == [0, 0]
jax.effects_barrier()
assert seen == [3, 2]
timing.report(lambda: [program(jnp.ones(3), jnp.eye(3)) for _ in range(50)])
