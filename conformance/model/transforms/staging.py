"""Transforms that change how JAX stages a function, and not its result."""

from __future__ import annotations

import jax

from ..worlds import ModelFunction
from .base import JaxFunction, Place, Setting


class Eager:
    name = "eager"
    promises = ("H4",)
    radix = 1

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        return function

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return function

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = {function}"


class Jit:
    name = "jit"
    promises = ("H4",)
    radix = 1

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        return jax.jit(function)

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return lambda world, x: function(world.in_program(), x)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = jax.jit({function})"
