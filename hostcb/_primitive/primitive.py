"""The one primitive behind all callbacks, with its rules in the order in which JAX applies them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jax.interpreters import ad

from .. import _compat
from .._compat import dispatch, fast_dispatch, layouts, rules
from .._compat.extend import Primitive, Var
from .._lowering import rule
from .._runtime.dispatch.programs import Program
from .._runtime.executions.executions import tracker
from .._spec import flags
from .._spec.callback import HostCallback
from .._spec.effects import HARMLESS, effects_of, ordered, tracked
from .._spec.naming import PACKAGE
from .._spec.placement import check_reduced
from .._workarounds import branches, memory_kinds, reductions, shard_maps, split_loops
from . import tangents as tangent_rules
from .batching import batch_callback
from .eager import run_eagerly

_compat.hold_weakly_in_caches(HostCallback)
_compat.hide_frames(PACKAGE)
_compat.let_results_be_cast()

host_callback_p = Primitive("host_callback")
# The same primitive for a callback whose user names its device: JAX lowers it with the device assignment.
placed_callback_p = Primitive("placed_host_callback")
_compat.require_devices(placed_callback_p)


# Abstract evaluation ---------------------------------------------------------------------------------------------


def _abstract_eval(
    *avals: Any, callback: HostCallback, result_avals: Sequence[Any], **_: Any
) -> tuple[list[Any], set[Any]]:
    check_reduced(callback, avals)
    effects = effects_of(callback.kind)
    if callback.kind.identity:
        return list(avals), effects
    if callback.invariant_results:
        return list(result_avals), effects
    return [_compat.varying_as(aval, avals) for aval in result_avals], effects


# Differentiation (H6, H8, X2, X3, X4, B4) ------------------------------------------------------------------------


def _refuse_differentiation(callback: HostCallback, rule: str) -> None:
    kind = callback.kind
    if kind.refuses_differentiation:
        raise kind.refusal(kind.refuses_differentiation.format(kind=kind.name, callback=callback.name, rule=rule))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    callback: HostCallback = params["callback"]
    _refuse_differentiation(callback, "JVP")
    if not callback.kind.identity:
        # A debug callback has no result, so no tangent. It is never placed: placed callbacks refuse differentiation.
        return host_callback_p.bind(*primals, **params), []
    if flags.ad_transforms.value:
        return tangent_rules.jvp(host_callback_p, primals, tangents, params)
    # A tap sees only the primals, and is the identity on the tangents.
    return host_callback_p.bind(*primals, **params), tangents


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
    if not params["callback"].kind.identity or not _tangents_unknown(tracers, params):
        return trace.default_process_primitive(host_callback_p, tracers, params)
    # Known primals must stay known, so they get a tap of their own, before the tap of the pair.
    count = params["callback"].primal.operand_count
    known = trace.default_process_primitive(host_callback_p, tracers[:count], tangent_rules.unpaired(params))
    pair = trace.default_process_primitive(host_callback_p, tracers, params)
    return [*known, *pair[count:]]


def _tangents_unknown(tracers: Sequence[Any], params: dict[str, Any]) -> bool:
    if not tangent_rules.is_pair(params):
        return False
    count = params["callback"].primal.operand_count
    known = [tracer.is_known() for tracer in tracers]
    return all(known[:count]) and not all(known[count:])


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    """Transpose a tap of tangents, as in `custom_jvp` rules, into a tap of cotangents."""
    callback: HostCallback = params["callback"]
    _refuse_differentiation(callback, "transpose")
    if not callback.kind.identity:
        return [None] * len(operands)
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    cotangents = [
        ad.instantiate_zeros(cotangent) if type(cotangent) is ad.Zero else cotangent for cotangent in cotangents
    ]
    if tangent_rules.is_pair(params):
        count = params["callback"].primal.operand_count
        untouched, cotangents = cotangents[:count], cotangents[count:]
        params = tangent_rules.for_cotangents(params)
    else:
        untouched = []
        params = tangent_rules.transposed(params, cotangents)
    tapped = iter(host_callback_p.bind(*(each for each in cotangents if not _compat.is_float0(each)), **params))
    # An integer has no cotangent. JAX cannot add two of its kind, where the integer's result goes into two taps.
    outs = [
        *(None if _compat.is_float0(each) else each for each in untouched),
        *(None if _compat.is_float0(each) else next(tapped) for each in cotangents),
    ]
    return [out if is_linear else None for out, is_linear in zip(outs, linear, strict=True)]


# Rematerialisation (H6, X4) --------------------------------------------------------------------------------------


def _partial_eval_remat(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], equation: Any) -> Any:
    """Split an equation in a checkpoint: it runs in the forward pass, again in the backward pass, or in both."""
    callback: HostCallback = equation.params["callback"]
    residuals = [
        variable
        for variable, is_instantiated in zip(equation.invars, instantiated, strict=True)
        if isinstance(variable, Var) and not is_instantiated
    ]
    count = len(equation.outvars)
    if tangent_rules.is_pair(equation.params):
        primals = callback.primal.operand_count  # type: ignore[union-attr]
        if any(unknown) and not any(unknown[:primals]):
            # As in `_partial_eval`: known primals must stay known, so they get a tap of their own.
            primal_tap = equation.replace(
                invars=equation.invars[:primals],
                outvars=equation.outvars[:primals],
                params=tangent_rules.unpaired(equation.params),
            )
            return primal_tap, equation, [False] * primals + [True] * (count - primals), [True] * count, residuals
    if any(unknown):
        return None, equation, [True] * count, [True] * count, residuals
    now: tuple[Any, ...] = equation, None, [False] * count, [False] * count, []
    twice: tuple[Any, ...] = equation, equation, [False] * count, [True] * count, residuals
    if callback.kind.kept_by_checkpoint:
        # By default JAX runs an equation with effects once. That is right for a call, which may be costly or return
        # another result the second time. A tap runs twice, to show that the forward pass runs again. A while_loop can
        # keep no result; its own rule takes the call out of the second run.
        return twice if split_loops.in_loop.get() else now
    avals = [variable.aval for variable in equation.invars]
    if not _compat.is_saved(saveable, equation.primitive, avals, equation.params):
        return twice
    if callback.kind.visible and all(instantiated):
        # The backward pass computes all its operands again.
        return twice
    return now


# Installation ----------------------------------------------------------------------------------------------------


def _install(primitive: Any) -> None:
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(run_eagerly, primitive))
    primitive.def_effectful_abstract_eval(_abstract_eval)
    rules.set_rule(rules.JVPS, primitive, _jvp)
    rules.set_rule(rules.TRANSPOSES, primitive, _transpose)
    rules.set_rule(rules.BATCHERS, primitive, functools.partial(batch_callback, primitive))
    rules.set_rule(rules.CHECKPOINTS, primitive, _partial_eval_remat)
    # Not cacheable: each equation may have its own handler, which the executable knows by its index.
    rules.register_lowering(primitive, rule.lower, cacheable=False)


_install(host_callback_p)
_install(placed_callback_p)
# Only for taps, which are never placed.
rules.set_rule(rules.PARTIAL_EVALUATIONS, host_callback_p, _partial_eval)

shard_maps.work_around(ordered)
branches.work_around(ordered)
reductions.work_around()
memory_kinds.work_around()
layouts.tell_layouts()
tracker.informed = dispatch.install_dispatch_hooks((ordered, tracked), Program, tracker)
if tracker.informed:
    fast_dispatch.enable_fast_dispatch((ordered, tracked), HARMLESS, Program, tracker)
    _compat.give_programs_a_token(tracked, HARMLESS, ordered)
else:
    dispatch.keep_order_without_hooks()
    # No execution reports them then.
    _compat.require_devices(host_callback_p)
