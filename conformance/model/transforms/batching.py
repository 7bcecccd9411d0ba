"""vmap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ..values import Value
from ..worlds import ModelFunction, World
from .base import JaxFunction, Place, Setting, offsets_source

LANES = 2


class Vmap:
    name = "vmap"
    promises = ("H7",)
    radix = 3

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        offsets = np.arange(LANES, dtype=np.float32) * np.float32(stride)

        def batched(x: jax.Array) -> jax.Array:
            # The mapped function closes over the operand, and vmap maps the offsets. So `function`
            # gets both batched and unbatched numbers.
            return jnp.sum(jax.vmap(lambda offset: function(x + offset))(offsets), axis=0)

        return batched

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        offsets = [lane * stride for lane in range(LANES)]

        def batched(world: World, x: Value) -> Value:
            # Levels are numbered from the outside in; an outer vmap is already in x.
            level = 1 + max(x.levels, default=-1)
            return function(world, x + Value.lanes(level, offsets)).sum_lanes(level, LANES)

        return batched

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
def {place.name}(x):
    lanes = jax.vmap(lambda offset: {function}(x + offset))({offsets_source(LANES, stride)})
    return jnp.sum(lanes, axis=0)"""
