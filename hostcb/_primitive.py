"""The one primitive behind all callbacks, with its rules in the order in which JAX applies them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from . import _compiler_bugs, _flags, _hooks, _jax, _lowering, _tangents
from ._batching import batch_callback
from ._callback import HostCallback
from ._eager import run_eagerly
from ._effects import effects_of, ordered
from ._executions import Program, account

_jax.hold_weakly_in_caches(HostCallback)

host_callback_p = jex.Primitive("host_callback")
# The same, for a callback whose user names its device: JAX lowers it with the list of devices at hand.
placed_callback_p = jex.Primitive("placed_host_callback")
_jax.require_devices(placed_callback_p)


# Abstract evaluation ---------------------------------------------------------------------------------------------


def _abstract_eval(
    *avals: Any, callback: HostCallback, result_avals: Sequence[Any], **_: Any
) -> tuple[list[Any], set[Any]]:
    effects = effects_of(callback.kind)
    if callback.kind.identity:
        return list(avals), effects
    return [_jax.varying_as(aval, avals) for aval in result_avals], effects


# Differentiation (H6, H8, X2, X3, X4, B4) ------------------------------------------------------------------------


def _refuse_differentiation(callback: HostCallback, rule: str) -> None:
    kind = callback.kind
    if kind.refuses_differentiation:
        raise kind.refusal(kind.refuses_differentiation.format(callback=callback.name, rule=rule))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    callback: HostCallback = params["callback"]
    _refuse_differentiation(callback, "JVP")
    if not callback.kind.identity:
        # What has no result has no tangent either. Nor is it placed: what can be, refuses differentiation.
        return host_callback_p.bind(*primals, **params), []
    if _flags.ad_transforms.value:
        return _tangents.jvp(host_callback_p, primals, tangents, params)
    # Primal values alone are tapped; for the tangents a tap is the identity.
    return host_callback_p.bind(*primals, **params), list(tangents)


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


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """A tap of tangents, as `custom_jvp` rules make them, taps cotangents when it is transposed."""
    callback: HostCallback = params["callback"]
    _refuse_differentiation(callback, "transpose")
    if not callback.kind.identity:
        return [None] * len(operands)
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


# Rematerialisation (H6, X4) --------------------------------------------------------------------------------------


def _partial_eval_remat(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], equation: Any) -> Any:
    """What a checkpoint does with the forward pass: known now, run again in the backward pass, or both."""
    callback: HostCallback = equation.params["callback"]
    residuals = [
        variable
        for variable, is_instantiated in zip(equation.invars, instantiated, strict=True)
        if isinstance(variable, jex.Var) and not is_instantiated
    ]
    count = len(equation.outvars)
    if _tangents.is_pair(equation.params):
        primals = callback.primal.operand_count  # type: ignore[union-attr]
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
    now: tuple[Any, ...] = equation, None, [False] * count, [False] * count, []
    twice: tuple[Any, ...] = equation, equation, [False] * count, [True] * count, residuals
    if callback.kind.kept_by_checkpoint:
        # JAX runs what has effects once by default, which is right for a call: it may be costly, or answer differently
        # the second time. A tap shows that the forward pass runs again.
        return now
    avals = [variable.aval for variable in equation.invars]
    if not _jax.is_saved(saveable, equation.primitive, avals, equation.params):
        return twice
    if callback.kind.visible and all(instantiated):
        # All that it shows is computed again anyway.
        return twice
    return now


# Installation ----------------------------------------------------------------------------------------------------


def _install(primitive: Any) -> None:
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(run_eagerly, primitive))
    primitive.def_effectful_abstract_eval(_abstract_eval)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = functools.partial(batch_callback, primitive)
    pe.partial_eval_jaxpr_custom_rules[primitive] = _partial_eval_remat
    # Not cacheable: each equation has a handler of its own, known to the executable by its number.
    mlir.register_lowering(primitive, _lowering.lower, cacheable=False)


_install(host_callback_p)
_install(placed_callback_p)
# For taps, which are never placed.
pe.custom_partial_eval_rules[host_callback_p] = _partial_eval

_compiler_bugs.work_around(ordered)
account.informed = _hooks.install_dispatch_hooks(ordered, Program, account)
