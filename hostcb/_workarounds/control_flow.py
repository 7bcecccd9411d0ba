"""Rules for control flow with callbacks inside, where JAX's own rules would break a promise (H4, H7, X3, X4).

JAX lowers a loop whose condition has ordered effects by moving the condition into the body. With a batched predicate
its rule does not freeze finished batch elements, so they run on: `vmap(lambda n: while_loop(lambda s: tap(s) < n,
lambda s: s + 1, 0.))([1, 3])` gives [3, 3]. hostcb rewrites such a loop before it is batched: the predicate becomes
part of the carry, and the remaining condition has no effect.

With a batched predicate, `cond` runs both branches and `while_loop` runs finished batch elements. hostcb refuses a
callback there that must run exactly once, as JAX refuses its own `io_callback`.

If XLA knows the trip count of a loop, it replaces the condition by a counter and drops callbacks without a token in it.
So when hostcb lowers such a loop, it makes the predicate part of the carry.

Under `grad` JAX moves loop-invariant equations out of a `scan`, callbacks with constant operands too. hostcb keeps
callbacks in the loop.

- docs/jax-bugs/vmap-while-condition.md: JAX >=0.4.31
- docs/jax-bugs/condition-callback-dropped.md: JAX >=0.5.0
- https://github.com/jax-ml/jax/issues/16637: JAX >=0.4.31
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from .. import _compat
from .._compat import rules
from .._compat.extend import jaxpr_as_fun
from .._spec.callback import callbacks_in
from .._spec.effects import HostCallbackEffect, OnceEffect, VisibleEffect


def _has(effect_classes: type | tuple[type, ...], *jaxprs: Any) -> bool:
    return any(isinstance(effect, effect_classes) for jaxpr in jaxprs for effect in jaxpr.effects)


def _batch_cond(
    plain: Callable[..., Any],
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *others: Any,
    branches: Any,
    **params: Any,
) -> Any:
    if dims[0] is not None and _has(OnceEffect, *branches):
        raise NotImplementedError(
            f"{_once_in(*branches)}: IO effect not supported in vmap-of-cond with a batched predicate: JAX runs both "
            "branches for all elements then, and a callback that must run exactly once would run where it should not. "
            "Use jax.lax.map in place of vmap, or debug.callback or id_tap if running in both branches is right."
        )
    return plain(axis_data, operands, dims, *others, branches=branches, **params)


def _once_in(*jaxprs: Any) -> Any:
    """Return the callback that must run exactly once, for an error."""
    callbacks = (callback for jaxpr in jaxprs for callback in callbacks_in(jaxpr) if callback.kind.once)
    return next(callbacks, "a host callback")


def _batch_while(
    plain: Callable[..., Any],
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    cond_nconsts: int,
    cond_jaxpr: Any,
    body_nconsts: int,
    body_jaxpr: Any,
    **others: Any,
) -> tuple[Any, Any]:
    params = dict(
        cond_nconsts=cond_nconsts, cond_jaxpr=cond_jaxpr, body_nconsts=body_nconsts, body_jaxpr=body_jaxpr, **others
    )
    must_run_once = _has(OnceEffect, cond_jaxpr, body_jaxpr)
    if not must_run_once and not _has(HostCallbackEffect, cond_jaxpr):
        return plain(axis_data, operands, dims, **params)
    if not _compat.predicate_is_batched(axis_data, dims, cond_nconsts, cond_jaxpr, body_nconsts, body_jaxpr):
        return plain(axis_data, operands, dims, **params)
    if must_run_once:
        raise NotImplementedError(
            f"{_once_in(cond_jaxpr, body_jaxpr)}: IO effects not supported in while_loop with batched predicate: the "
            "loop runs until the last element is done, and a callback that must run exactly once would run for those "
            "that are. Use jax.lax.map in place of vmap, or debug.callback or id_tap if that is right."
        )

    loop = _with_carried_predicate(cond_jaxpr, cond_nconsts, body_jaxpr, body_nconsts, batched=True)
    # The carry becomes batched in the loop. It is batched from the start, so that the first tap equals the others.
    consts = cond_nconsts + body_nconsts
    full = [
        jax.numpy.broadcast_to(x, (axis_data.size, *jax.numpy.shape(x))) if i >= consts and dim is None else x
        for i, (x, dim) in enumerate(zip(operands, dims, strict=True))
    ]
    axes = [0 if i >= consts and dim is None else dim for i, dim in enumerate(dims)]
    batched = jax.vmap(
        loop,
        in_axes=axes,
        axis_size=axis_data.size,
        axis_name=axis_data.name,
        spmd_axis_name=axis_data.spmd_name,
    )
    outs = batched(*full)
    return list(outs), [0] * len(outs)


def _with_carried_predicate(
    cond_jaxpr: Any, cond_nconsts: int, body_jaxpr: Any, body_nconsts: int, batched: bool = False
) -> Callable[..., Any]:
    """Return the loop as a function of its operands, with the predicate in the carry and no callback in the condition.

    With `batched`, the loop freezes finished batch elements, so that vmap may batch the predicate.
    """
    condition = jaxpr_as_fun(cond_jaxpr)
    body = jaxpr_as_fun(body_jaxpr)

    def loop(*arguments: Any) -> Any:
        of_condition = arguments[:cond_nconsts]
        of_body = arguments[cond_nconsts : cond_nconsts + body_nconsts]
        initial = tuple(arguments[cond_nconsts + body_nconsts :])

        def step(carry: Any) -> Any:
            going, values = carry
            moved = tuple(body(*of_body, *values))
            if batched:
                # `going` is always true before batching. After it, the select freezes finished batch elements.
                moved = tuple(jax.lax.select(going, new, old) for new, old in zip(moved, values, strict=True))
            (going_on,) = condition(*of_condition, *moved)
            return going_on, moved

        (first,) = condition(*of_condition, *initial)
        return jax.lax.while_loop(lambda carry: carry[0], step, (first, initial))[1]

    return loop


def _lower_while(plain: Callable[..., Any], context: Any, *operands: Any, **params: Any) -> Any:
    """Lower a loop by JAX's rule, unless its condition has a callback without a token.

    With a token, JAX's own rule moves the condition into the body.
    """
    cond_jaxpr = params["cond_jaxpr"]
    is_batched = bool(cond_jaxpr.out_avals[0].shape)
    if is_batched or _has(HostCallbackEffect, cond_jaxpr) or not _has((VisibleEffect, OnceEffect), cond_jaxpr):
        return plain(context, *operands, **params)
    loop = _with_carried_predicate(cond_jaxpr, params["cond_nconsts"], params["body_jaxpr"], params["body_nconsts"])
    return mlir.lower_fun(lambda *arguments, **_: list(loop(*arguments)), multiple_results=True)(context, *operands)


def _refuse_stale(condition: Any) -> None:
    callback = next(callbacks_in(condition), "a host callback")
    raise NotImplementedError(
        f"{callback} was used in the condition of a while_loop that also uses a mutable array (jax.Ref) which the "
        "loop's body changes: JAX evaluates the condition with the value from before the loop. Carry the array's value "
        "through the loop, or call back in the body."
    )


def _has_callback(jaxpr: Any) -> bool:
    return any(True for _ in callbacks_in(jaxpr))


_compat.watch_conditions(_has_callback, _refuse_stale, lambda condition: _has((VisibleEffect, OnceEffect), condition))
if _compat.lower_while is not None:
    rules.register_lowering(jax.lax.while_p, functools.partial(_lower_while, _compat.lower_while))
_compat.keep_in_scans(lambda jaxpr: _has((HostCallbackEffect, VisibleEffect, OnceEffect), jaxpr))
_compat.stand_before_batching(_batch_cond, _batch_while)
