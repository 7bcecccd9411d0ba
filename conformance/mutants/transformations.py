"""Wrong rules for vmap and differentiation of callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .host_functions import around, instead
from .mutant import Plant, mutant


def _with_transforms(change: Callable[[Any], Any]) -> Plant:
    """Taps that get wrong `transforms`."""

    @around("id_tap")
    @functools.wraps(change)
    def run(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
        function(operand, change(transforms), **options)

    return run


def _with_dims(transforms: Any, change: Callable[[Any], Any]) -> Any:
    return tuple((name, {"batch_dims": tuple(map(change, entry["batch_dims"]))}) for name, entry in transforms)


def _with_rule(rule: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    """A callback with this rule for derivatives, which receives the callback, its operand and the tangent of that."""

    @functools.wraps(rule)
    def with_rule(callback: Any, function: Any, operand: Any, **options: Any) -> Any:
        this = functools.partial(callback, function, **options)
        differentiated = jax.custom_jvp(this)
        differentiated.defjvp(lambda primals, tangents: rule(this, primals[0], tangents[0]))
        return differentiated(operand)

    return with_rule


@mutant("id_tap/vmap/cpu-8dev id_tap/vmap.scan/cpu-8dev", "wrong transforms at callback")
@_with_transforms
def wrong_batch_dims(transforms: Any) -> Any:
    """A tap receives another batch dimension."""
    return _with_dims(transforms, lambda dim: dim if dim is None else dim + 1)


@mutant("id_tap_tree/vmap/cpu-8dev id_tap_tree/vmap.vmap/cpu-8dev", "wrong transforms at callback")
@_with_transforms
def constants_batched(transforms: Any) -> Any:
    """What is not batched is said to be batched."""
    return _with_dims(transforms, lambda dim: dim or 0)


@mutant("id_tap*/vmap.vmap/cpu-8dev", "wrong transforms at callback")
@_with_transforms
def outermost_batch_first(transforms: Any) -> Any:
    """The entries of nested vmaps come in the reverse order."""
    return tuple(reversed(transforms))


@mutant("id_tap/vmap/cpu-8dev id_tap/jit.vmap.cond/cpu-8dev", "wrong transforms at callback")
@_with_transforms
def transforms_forgotten(transforms: Any) -> Any:
    """A tap receives no mark that its operand is batched."""
    return ()


@mutant("id_tap/vmap/cpu-8dev id_tap/vmap.vmap/cpu-8dev", "wrong operand at callback")
@around("id_tap")
def first_element_only(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
    """Under vmap the first element alone reaches the callback."""
    for _ in transforms:
        operand = operand[0]
    function(operand, (), **options)


@mutant("id_tap/jvp/cpu-8dev id_tap/grad/cpu-8dev", "wrong operand at callback")
@instead("id_tap")
@_with_rule
def tangent_tapped(tap: Any, x: Any, tangent: Any) -> tuple[Any, Any]:
    """Under differentiation a tap sees the tangent."""
    return x, tap(tangent)


@mutant("id_tap/grad.custom_jvp/cpu-8dev", "lost at callback")
@around("id_tap")
def cotangent_untapped(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
    """A tap of tangents taps nothing when it is transposed."""
    if ("transpose", {}) not in transforms:
        function(operand, transforms, **options)


@mutant(
    "id_tap/grad.custom_jvp/cpu-8dev id_tap_device/grad.custom_jvp/cpu-8dev "
    "id_tap_device_index/pjit.grad.custom_jvp/cpu-8dev",
    "wrong transforms at callback",
)
@_with_transforms
def transpose_unmarked(transforms: Any) -> Any:
    """A tap of a cotangent receives no mark of the transposition."""
    return tuple(entry for entry in transforms if entry[0] != "transpose")


@mutant("call/jvp/cpu-8dev call/grad/cpu-8dev", "not refused at trace")
@instead("call")
@_with_rule
def differentiable_call(call: Any, x: Any, tangent: Any) -> tuple[Any, Any]:
    """A call is differentiated, with derivative zero, where it must refuse."""
    result = call(x)
    return result, jax.tree.map(jnp.zeros_like, result)


@mutant("call/vmap/cpu-8dev call/scan.vmap/cpu-8dev", "not refused at trace")
@instead("call")
def batched_call(call: Any, function: Any, operand: Any, **options: Any) -> Any:
    """A call is batched without the option that says how."""
    return call(function, operand, **{"vmap_method": "sequential", **options})
