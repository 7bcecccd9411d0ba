"""jvp, grad, stop_gradient, checkpoint and the custom derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..values import PRIMAL, Infinitesimal, Value, fresh_infinitesimal
from ..worlds import ModelFunction, Reverse, World
from .base import Place, Transform

CUSTOM_SLOPE = 2.0
"""The custom rules' derivative. It differs from the function's own derivative, so that a lost rule shows."""


class Jvp(Transform):
    """The sum of primal and tangent."""

    name = "jvp"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        infinitesimal = fresh_infinitesimal()
        result = function(world, x.perturb(infinitesimal))
        return result.without(infinitesimal) + result.derivative(infinitesimal)

    def source(self, function: str, place: Place, stride: float) -> str:
        # The tangent depends on x, and so is batched if x is.
        return f"""\
def {place.name}(x):
    primal, tangent = jax.jvp({function}, (x,), (x - x + np.float32(1),))
    return primal + tangent"""


class Grad(Transform):
    """The gradient of the function; a last callback marks the end of the forward pass."""

    name = "grad"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        infinitesimal = fresh_infinitesimal()
        inside = replace(world, backward=[], reverse=Reverse(infinitesimal, x.levels))
        result = function(inside, x.perturb(infinitesimal))
        inside.probe("forward_end", result.primal())
        for step in reversed(inside.backward or []):
            step(result)
        return result.derivative(infinitesimal)

    def source(self, function: str, place: Place, stride: float) -> str:
        # The result has no derivative and is unused, so a faulty autodiff could easily drop this callback.
        return f"""\
def {place.helper}(x):
    result = {function}(x)
    callback("forward_end", jax.lax.stop_gradient(result))
    return jnp.sum(result)

{place.name} = jax.grad({place.helper})"""


class Detached(Transform):
    """No derivative reaches the function: a callback that refuses derivatives must work here."""

    name = "detached"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        return function(world, x.primal()) + x

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
def {place.name}(x):
    return {function}(jax.lax.stop_gradient(x)) + x"""


class Remat(Transform):
    """checkpoint: the backward pass runs the function a second time."""

    name = "remat"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        if world.backward is None or not x.perturbed:
            return function(world, x)
        inside = replace(world, backward=[], checkpointed=True)
        result = function(inside, x)

        def recompute_then_go_back(outcome: Value) -> None:
            function(replace(world, backward=None, recomputing=True), x)
            for step in reversed(inside.backward or []):
                step(outcome)

        world.backward.append(recompute_then_go_back)
        return result

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"{place.name} = jax.checkpoint({function})"


class CustomJvp(Transform):
    """A rule that taps the tangent. Under grad JAX transposes the tap, and it sees the cotangent."""

    name = "custom_jvp"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        # The innermost derivative takes the rule. Outer ones differentiate what the rule does.
        innermost = x.innermost
        if innermost is None:
            return function(world, x)
        result = function(world, x.without(innermost))
        tangent = x.only(innermost)
        if world.taps_tangents:
            tangent = _tap_tangent(world, tangent, innermost)
        return result + tangent * CUSTOM_SLOPE

    def source(self, function: str, place: Place, stride: float) -> str:
        tapped = 'callback("tangent", tangent)' if place.taps_tangents else "tangent"
        # The slope depends on x, so that the cotangent of the tap is batched if x is.
        return f"""\
@jax.custom_jvp
def {place.name}(x):
    return {function}(x)

@{place.name}.defjvp
def {place.helper}(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return {function}(x), {tapped} * (x - x + {int(CUSTOM_SLOPE)})"""


class CustomVjp(Transform):
    """The documented recipe for tapping cotangents: the backward rule runs the callback."""

    name = "custom_vjp"
    promises = ("H6",)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        plain = function(world, x.primal()) + x.perturbation() * CUSTOM_SLOPE
        if world.backward is None or not x.perturbed:
            return plain
        result, cotangent = _with_cotangent(plain)
        world.backward.append(lambda outcome: world.probe("cotangent", cotangent(outcome).primal()))
        return result

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
@jax.custom_vjp
def {place.name}(x):
    return {function}(x)

def {place.helper}(_, cotangent):
    callback("cotangent", cotangent)
    return (cotangent * {int(CUSTOM_SLOPE)},)

{place.name}.defvjp(lambda x: ({function}(x), None), {place.helper})"""


def _tap_tangent(world: World, tangent: Value, innermost: Infinitesimal) -> Value:
    """Tap the tangent, or, in a backward pass, the cotangent of the tap."""
    if world.reverse is None or world.reverse.infinitesimal != innermost:
        world.probe("tangent", tangent.derivative(innermost).primal())
        return tangent
    if world.backward is None:
        # The second forward pass of a checkpointed function.
        return tangent
    tapped, cotangent = _with_cotangent(tangent)
    world.backward.append(lambda outcome: world.probe("tangent", cotangent(outcome).primal(), transposed=True))
    return tapped


def _with_cotangent(number: Value) -> tuple[Value, Callable[[Value], Value]]:
    """The number, and its cotangent, as a function of the differentiated result.

    Each element of the cotangent is the derivative of the result's sum by a perturbation of that element alone: a vmap
    or a computation over a mesh in between sums over them.
    """
    moved, infinitesimals = number.perturb_elements()

    def cotangent(outcome: Value) -> Value:
        data = np.zeros(number.data.shape)
        for index, infinitesimal in infinitesimals:
            data[index] = outcome.derivative(infinitesimal).data.sum()
        return Value(number.levels, {PRIMAL: data})

    return moved, cotangent
