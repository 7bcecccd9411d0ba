"""Transforms that change how JAX stages a function, and not its result."""

from __future__ import annotations

from ..worlds import ModelFunction
from .base import Place, Transform


class Eager(Transform):
    name = "eager"
    promises = ("H4",)

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return function

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = {function}"


class Jit(Transform):
    name = "jit"
    promises = ("H4",)

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return lambda world, x: function(world.in_program(), x)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = jax.jit({function})"
