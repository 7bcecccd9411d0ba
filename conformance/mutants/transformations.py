"""Wrong rules for vmap and differentiation of callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..oracle.verdicts import Stage
from .host_functions import surround
from .mutant import Library, Mutant, Names, at


def _with_transforms(library: Library, change: Callable[[Any], Any]) -> Names:
    """Taps that get wrong `transforms`."""

    def run(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
        function(operand, change(transforms), **options)

    return surround(library, run, "id_tap")


def _with_dims(transforms: Any, change: Callable[[Any], Any]) -> Any:
    return tuple((name, {"batch_dims": tuple(map(change, entry["batch_dims"]))}) for name, entry in transforms)


def _wrong_batch_dims(library: Library) -> Names:
    return _with_transforms(
        library, lambda transforms: _with_dims(transforms, lambda dim: dim if dim is None else dim + 1)
    )


def _constants_batched(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: _with_dims(transforms, lambda dim: dim or 0))


def _outermost_batch_first(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: tuple(reversed(transforms)))


def _transforms_forgotten(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: ())


def _first_element_only(library: Library) -> Names:
    def run(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
        for _ in transforms:
            operand = operand[0]
        function(operand, (), **options)

    return surround(library, run, "id_tap")


def _tangent_tapped(library: Library) -> Names:
    def id_tap(function: Any, operand: Any, **options: Any) -> Any:
        @jax.custom_jvp
        def tapped(x: Any) -> Any:
            return library.id_tap(function, x, **options)

        @tapped.defjvp
        def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
            return primals[0], library.id_tap(function, tangents[0], **options)

        return tapped(operand)

    return {"id_tap": id_tap}


def _cotangent_untapped(library: Library) -> Names:
    def run(function: Any, operand: Any, transforms: Any, **options: Any) -> None:
        if ("transpose", {}) not in transforms:
            function(operand, transforms, **options)

    return surround(library, run, "id_tap")


def _transpose_unmarked(library: Library) -> Names:
    return _with_transforms(library, lambda transforms: tuple(entry for entry in transforms if entry[0] != "transpose"))


def _differentiable_call(library: Library) -> Names:
    def call(function: Any, operand: Any, **options: Any) -> Any:
        @jax.custom_jvp
        def called(x: Any) -> Any:
            return library.call(function, x, **options)

        @called.defjvp
        def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
            result = library.call(function, primals[0], **options)
            return result, jax.tree.map(jnp.zeros_like, result)

        return called(operand)

    return {"call": call}


def _batched_call(library: Library) -> Names:
    def call(function: Any, operand: Any, **options: Any) -> Any:
        return library.call(function, operand, **{"vmap_method": "sequential", **options})

    return {"call": call}


_WRONG_TRANSFORMS = at(Stage.CALLBACK, "wrong transforms")
_WRONG_OPERAND = at(Stage.CALLBACK, "wrong operand")
_NOT_REFUSED = at(Stage.TRACE, "not refused")

MUTANTS = (
    Mutant(
        "wrong_batch_dims",
        "a tap receives another batch dimension",
        _wrong_batch_dims,
        ("id_tap/vmap/cpu-8dev", "id_tap/vmap.scan/cpu-8dev"),
        _WRONG_TRANSFORMS,
    ),
    Mutant(
        "constants_batched",
        "what is not batched is said to be batched",
        _constants_batched,
        ("id_tap_tree/vmap/cpu-8dev", "id_tap_tree/vmap.vmap/cpu-8dev"),
        _WRONG_TRANSFORMS,
    ),
    Mutant(
        "outermost_batch_first",
        "the entries of nested vmaps come in the reverse order",
        _outermost_batch_first,
        ("id_tap*/vmap.vmap/cpu-8dev",),
        _WRONG_TRANSFORMS,
    ),
    Mutant(
        "transforms_forgotten",
        "a tap receives no mark that its operand is batched",
        _transforms_forgotten,
        ("id_tap/vmap/cpu-8dev", "id_tap/jit.vmap.cond/cpu-8dev"),
        _WRONG_TRANSFORMS,
    ),
    Mutant(
        "first_element_only",
        "under vmap the first element alone reaches the callback",
        _first_element_only,
        ("id_tap/vmap/cpu-8dev", "id_tap/vmap.vmap/cpu-8dev"),
        _WRONG_OPERAND,
    ),
    Mutant(
        "tangent_tapped",
        "under differentiation a tap sees the tangent",
        _tangent_tapped,
        ("id_tap/jvp/cpu-8dev", "id_tap/grad/cpu-8dev"),
        _WRONG_OPERAND,
    ),
    Mutant(
        "cotangent_untapped",
        "a tap of tangents taps nothing when it is transposed",
        _cotangent_untapped,
        ("id_tap/grad.custom_jvp/cpu-8dev",),
        at(Stage.CALLBACK, "lost"),
    ),
    Mutant(
        "transpose_unmarked",
        "a tap of a cotangent receives no mark of the transposition",
        _transpose_unmarked,
        (
            "id_tap/grad.custom_jvp/cpu-8dev",
            "id_tap_device/grad.custom_jvp/cpu-8dev",
            "id_tap_device_index/pjit.grad.custom_jvp/cpu-8dev",
        ),
        _WRONG_TRANSFORMS,
    ),
    Mutant(
        "differentiable_call",
        "a call is differentiated, with derivative zero, where it must refuse",
        _differentiable_call,
        ("call/jvp/cpu-8dev", "call/grad/cpu-8dev"),
        _NOT_REFUSED,
    ),
    Mutant(
        "batched_call",
        "a call is batched without the option that says how",
        _batched_call,
        ("call/vmap/cpu-8dev", "call/scan.vmap/cpu-8dev"),
        _NOT_REFUSED,
    ),
)
