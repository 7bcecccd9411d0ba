"""Callbacks in the functions of JAX primitives that do not report the effects of those functions.

`linear_call`, `composite`, `pallas_call` in interpret mode and `custom_partitioning` do not report the effects of the
function. So JAX drops the equation, with its callbacks, if its result is not used, and lowers the function without the
token of ordered callbacks. hostcb adds its own effects to the abstract evaluation of these primitives. Then JAX keeps
the equation and threads the token through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.interpreters import mlir

from .. import _compat
from .._compat import rules
from .._compat.extend import jaxpr_as_fun
from .._spec.callback import HostCallback, callbacks_in
from .._spec.effects import HostCallbackEffect, OnceEffect, VisibleEffect

_HOSTCB_EFFECTS = (HostCallbackEffect, OnceEffect, VisibleEffect)

# The primitives whose modules have not been imported; hostcb does not import them, since `pallas` takes long.
_not_imported = dict(_compat.HOLDING_FUNCTIONS)


def declare_effects() -> None:
    """Add hostcb's effects to the primitives whose modules have been imported since the last call."""
    for name in _compat.imported(_not_imported):
        _mend(name, _not_imported.pop(name))


def _mend(name: str, parameters: tuple[str, ...]) -> None:
    primitive, plain_lowering = _compat.holding_function(name)
    if primitive is None:
        return
    plain = primitive.abstract_eval

    def abstract_eval(*avals: Any, **params: Any) -> tuple[Any, set[Any]]:
        out_avals, effects = plain(*avals, **params)
        return out_avals, {*effects, *_effects_of(_held_function(params, parameters))}

    primitive.def_effectful_abstract_eval(abstract_eval)
    if plain_lowering is not None:
        rules.register_lowering(primitive, _LOWERINGS[name](plain_lowering, parameters))


def _held_function(params: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return a primitive's parameter that holds its function, under whatever name; None if it has none."""
    named = next((params[name] for name in names if name in params), None)
    if named is not None:
        return named
    return next((value for value in params.values() if hasattr(getattr(value, "jaxpr", value), "eqns")), None)


def _effects_of(function: Any) -> list[Any]:
    return [effect for effect in getattr(function, "effects", ()) if isinstance(effect, _HOSTCB_EFFECTS)]


def _lower_composite(plain: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """A composite operation takes no token. So hostcb lowers one with ordered callbacks as its function, inlined."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        function = _held_function(params, names)
        if not any(isinstance(effect, HostCallbackEffect) for effect in _effects_of(function)):
            return plain(context, *operands, **params)
        return mlir.lower_fun(jaxpr_as_fun(function), multiple_results=True)(context, *operands)

    return lower


def _lower_custom_partitioning(plain: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """On several devices, JAX compiles the function in a module of its own and drops the handlers of callbacks."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        function = _held_function(params, names)
        if function is not None and _is_partitioned(context.module_context.axis_context):
            for callback in callbacks_in(function):
                raise not_in_custom_partitioning(callback)
        return plain(context, *operands, **params)

    return lower


_LOWERINGS = {"composite": _lower_composite, "custom_partitioning": _lower_custom_partitioning}


def _is_partitioned(axis_context: Any) -> bool:
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return set(axis_context.manual_axes) != set(axis_context.mesh.axis_names)
    return getattr(axis_context, "num_devices", 1) > 1


def refuse_in_modules_without_handlers(jaxpr: Any) -> None:
    """Refuse callbacks in the function that `custom_partitioning` compiles for the shards; lowering may not see it."""
    for callback in callbacks_in(jaxpr):
        raise not_in_custom_partitioning(callback)


def not_in_custom_partitioning(callback: HostCallback) -> NotImplementedError:
    """The error for a callback whose handler JAX would lose."""
    return NotImplementedError(
        f"{callback} was used in a function with custom_partitioning that runs on several devices. JAX compiles the "
        "partitioned function apart and forgets its host callbacks, so that a call would crash the process. Call back "
        "outside of that function, or use jax.shard_map in place of custom_partitioning."
    )


_compat.before_modules_apart(refuse_in_modules_without_handlers)
