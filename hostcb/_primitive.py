"""The one primitive behind all host callbacks, with its rules in the order in which JAX applies them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from . import _flags, _jax, _lowering, _tangents
from ._batching import batch_call
from ._callback import HostCallback
from ._eager import run_eagerly
from ._executions import Program, account


class HostCallbackEffect(jex.Effect):
    """Callbacks happen in program order on each device (H5)."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostCallbackEffect)

    def __hash__(self) -> int:
        return hash(HostCallbackEffect)

    def __str__(self) -> str:
        return "HostCallback"

    __repr__ = __str__


effect = HostCallbackEffect()
_jax.register_ordered_effect(HostCallbackEffect)

host_callback_p = jex.Primitive("host_callback")
host_callback_p.multiple_results = True
_jax.hold_weakly_in_caches(HostCallback)


# Outside any transformation --------------------------------------------------------------------------------------

host_callback_p.def_impl(functools.partial(run_eagerly, host_callback_p))


# Abstract evaluation ---------------------------------------------------------------------------------------------


@host_callback_p.def_effectful_abstract_eval
def _abstract_eval(
    *avals: Any, callback: HostCallback, result_avals: Sequence[Any], **_: Any
) -> tuple[list[Any], set[Any]]:
    if callback.kind.identity:
        return list(avals), {effect}
    return [_jax.varying_as(aval, avals) for aval in result_avals], {effect}


# Differentiation (H6, H8) ----------------------------------------------------------------------------------------


def _refuse_differentiation(callback: HostCallback) -> None:
    if not callback.kind.identity:
        raise NotImplementedError(callback.kind.refuses_differentiation.format(callback=callback.name))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    _refuse_differentiation(params["callback"])
    if _flags.ad_transforms.value:
        return _tangents.jvp(host_callback_p, primals, tangents, params)
    # Primal values alone are tapped; for the tangents a tap is the identity.
    return host_callback_p.bind(*primals, **params), list(tangents)


ad.primitive_jvps[host_callback_p] = _jvp


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
    if not params["callback"].kind.identity or not _tangents_unknown(tracers, params):
        return trace.default_process_primitive(host_callback_p, tracers, params)
    # Known primals must stay known, so they get a tap of their own, before that of the pair.
    count = params["callback"].primal.operand_count
    known = trace.default_process_primitive(host_callback_p, tracers[:count], _tangents.unpaired(params))
    pair = trace.default_process_primitive(host_callback_p, tracers, params)
    return [*known, *pair[count:]]


def _tangents_unknown(tracers: Sequence[Any], params: dict[str, Any]) -> bool:
    if not _tangents.is_pair(params):
        return False
    count = params["callback"].primal.operand_count
    known = [tracer.is_known() for tracer in tracers]
    return all(known[:count]) and not all(known[count:])


pe.custom_partial_eval_rules[host_callback_p] = _partial_eval


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """A tap of tangents, as `custom_jvp` rules make them, taps cotangents when it is transposed."""
    _refuse_differentiation(params["callback"])
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    cotangents = [
        ad.instantiate_zeros(cotangent) if type(cotangent) is ad.Zero else cotangent for cotangent in cotangents
    ]
    if _tangents.is_pair(params):
        count = params["callback"].primal.operand_count
        untouched, cotangents = cotangents[:count], cotangents[count:]
        params = _tangents.for_cotangents(params)
    else:
        untouched = []
        params = {**params, "transforms": (*params["transforms"], ("transpose",))}
    tapped = host_callback_p.bind(*cotangents, **params)
    return [out if is_linear else None for out, is_linear in zip([*untouched, *tapped], linear, strict=True)]


ad.primitive_transposes[host_callback_p] = _transpose


# Batching (H7, H8) -----------------------------------------------------------------------------------------------


def _batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    callback: HostCallback = params["callback"]
    if not callback.kind.identity:
        return batch_call(host_callback_p, operands, dims, params)
    # JAX's own mark for an operand that is not batched is None, and so is host_callback's.
    batched = {**params, "transforms": (*params["transforms"], ("batch", tuple(dims)))}
    return host_callback_p.bind(*operands, **batched), list(dims)


batching.primitive_batchers[host_callback_p] = _batch


# Rematerialisation (H6) ------------------------------------------------------------------------------------------


def _partial_eval_remat(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], equation: Any) -> Any:
    """A tap runs again when the forward pass does; a call runs once and its result is kept.

    JAX runs effectful primitives once by default. host_callback documents the second tap, and a call may be costly
    or answer differently the second time.
    """
    residuals = [
        variable
        for variable, is_instantiated in zip(equation.invars, instantiated, strict=True)
        if isinstance(variable, jex.Var) and not is_instantiated
    ]
    count = len(equation.outvars)
    if _tangents.is_pair(equation.params):
        primals = equation.params["callback"].primal.operand_count
        if any(unknown) and not any(unknown[:primals]):
            # As in `_partial_eval`: known primals must stay known, so they get a tap of their own.
            own = equation.replace(
                invars=equation.invars[:primals],
                outvars=equation.outvars[:primals],
                params=_tangents.unpaired(equation.params),
            )
            return own, equation, [False] * primals + [True] * (count - primals), [True] * count, residuals
    if any(unknown):
        return None, equation, [True] * count, [True] * count, residuals
    avals = [variable.aval for variable in equation.invars]
    callback: HostCallback = equation.params["callback"]
    if not callback.kind.identity or _jax.is_saved(saveable, equation.primitive, avals, equation.params):
        return equation, None, [False] * count, [False] * count, []
    return equation, equation, [False] * count, [True] * count, residuals


pe.partial_eval_jaxpr_custom_rules[host_callback_p] = _partial_eval_remat


# Lowering --------------------------------------------------------------------------------------------------------

# Not cacheable: each equation has a handler of its own, known to the executable by its number.
mlir.register_lowering(host_callback_p, functools.partial(_lowering.lower, effect), cacheable=False)


# Dispatch --------------------------------------------------------------------------------------------------------

account.informed = _jax.install_dispatch_hooks(effect, Program, account)
