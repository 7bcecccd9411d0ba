"""Wrong rules for vmap and differentiation of callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .host_functions import around, surround
from .mutant import Library, Names, mutant


def _with_transforms(library: Library, change: Callable[[Any], Any]) -> Names:
    """Taps that get wrong `transforms`."""

    def run(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
        function(operand, change(transforms), **options)

    return surround(library, run, "id_tap")


def _with_dims(transforms: Any, change: Callable[[Any], Any]) -> Any:
    return tuple((name, {"batch_dims": tuple(map(change, entry["batch_dims"]))}) for name, entry in transforms)


def _with_rule(callback: Any, rule: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Any:
    """A callback with this rule for derivatives, which receives the callback, its operand and the tangent of that."""

    def with_rule(function: Any, operand: Any, **options: Any) -> Any:
        this = functools.partial(callback, function, **options)
        differentiated = jax.custom_jvp(this)
        differentiated.defjvp(lambda primals, tangents: rule(this, primals[0], tangents[0]))
        return differentiated(operand)

    return with_rule


@mutant(
    "a tap receives another batch dimension",
    "id_tap/vmap/cpu-8dev id_tap/vmap.scan/cpu-8dev",
    "wrong transforms at callback",
)
def wrong_batch_dims(library: Library) -> Names:
    return _with_transforms(
        library, lambda transforms: _with_dims(transforms, lambda dim: dim if dim is None else dim + 1)
    )


@mutant(
    "what is not batched is said to be batched",
    "id_tap_tree/vmap/cpu-8dev id_tap_tree/vmap.vmap/cpu-8dev",
    "wrong transforms at callback",
)
def constants_batched(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: _with_dims(transforms, lambda dim: dim or 0))


@mutant(
    "the entries of nested vmaps come in the reverse order",
    "id_tap*/vmap.vmap/cpu-8dev",
    "wrong transforms at callback",
)
def outermost_batch_first(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: tuple(reversed(transforms)))


@mutant(
    "a tap receives no mark that its operand is batched",
    "id_tap/vmap/cpu-8dev id_tap/jit.vmap.cond/cpu-8dev",
    "wrong transforms at callback",
)
def transforms_forgotten(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: ())


@mutant(
    "under vmap the first element alone reaches the callback",
    "id_tap/vmap/cpu-8dev id_tap/vmap.vmap/cpu-8dev",
    "wrong operand at callback",
)
@around("id_tap")
def first_element_only(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
    for _ in transforms:
        operand = operand[0]
    function(operand, (), **options)


@mutant(
    "under differentiation a tap sees the tangent",
    "id_tap/jvp/cpu-8dev id_tap/grad/cpu-8dev",
    "wrong operand at callback",
)
def tangent_tapped(library: Library) -> Names:
    return {"id_tap": _with_rule(library.id_tap, lambda tap, x, tangent: (x, tap(tangent)))}


@mutant("a tap of tangents taps nothing when it is transposed", "id_tap/grad.custom_jvp/cpu-8dev", "lost at callback")
@around("id_tap")
def cotangent_untapped(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
    if ("transpose", {}) not in transforms:
        function(operand, transforms, **options)


@mutant(
    "a tap of a cotangent receives no mark of the transposition",
    "id_tap/grad.custom_jvp/cpu-8dev id_tap_device/grad.custom_jvp/cpu-8dev "
    "id_tap_device_index/pjit.grad.custom_jvp/cpu-8dev",
    "wrong transforms at callback",
)
def transpose_unmarked(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: tuple(entry for entry in transforms if entry[0] != "transpose"))


@mutant(
    "a call is differentiated, with derivative zero, where it must refuse",
    "call/jvp/cpu-8dev call/grad/cpu-8dev",
    "not refused at trace",
)
def differentiable_call(library: Library) -> Names:
    def rule(call: Any, x: Any, _: Any) -> tuple[Any, Any]:
        result = call(x)
        return result, jax.tree.map(jnp.zeros_like, result)

    return {"call": _with_rule(library.call, rule)}


@mutant(
    "a call is batched without the option that says how",
    "call/vmap/cpu-8dev call/scan.vmap/cpu-8dev",
    "not refused at trace",
)
def batched_call(library: Library) -> Names:
    def call(function: Any, operand: Any, **options: Any) -> Any:
        return library.call(function, operand, **{"vmap_method": "sequential", **options})

    return {"call": call}
