"""Transforms that change how JAX stages a function, and vmap."""

from __future__ import annotations

from ..values import Value
from ..worlds import ModelFunction, World
from .base import Place, Transform, offsets_source


class Eager(Transform):
    name = "eager"
    promises = ("H4",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        return function(world, x)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = {function}"


class Jit(Transform):
    name = "jit"
    promises = ("H4",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        return function(world.in_program(), x)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = jax.jit({function})"


BATCH_SIZE = 2


class Vmap(Transform):
    name = "vmap"
    promises = ("H7",)
    radix = 3

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        # Levels are numbered from the outside in; an outer vmap is already in x.
        level = 1 + max(x.levels, default=-1)
        batch = x.widen() + Value.batch(level, [element * stride for element in range(BATCH_SIZE)])
        return function(world, batch).sum_batch(level, BATCH_SIZE).narrow()

    def source(self, function: str, place: Place, stride: float) -> str:
        # The batch is the last axis, after one of size one. So the batches of nested vmaps are different axes of a
        # callback's operand, and a callback that receives them in the wrong order receives wrong axes.
        return f"""\
def {place.name}(x):
    batch = jnp.expand_dims(x, (-2, -1)) + {offsets_source(range(BATCH_SIZE), stride)}
    return jnp.sum(jax.vmap({function}, in_axes=-1)(batch), axis=(0, -1))"""
