"""Control flow with callbacks inside, where JAX's own rules would do something else (H4, H7, X3, X4).

JAX lowers a loop whose condition has ordered effects by moving the condition into the body. For a batched predicate
it forgets to keep the finished lanes as they are, so they run on: `vmap(lambda n: while_loop(lambda s: tap(s) < n,
lambda s: s + 1, 0.))([1, 3])` gives [3, 3]. Here such a loop is rewritten before it is batched: the predicate becomes
part of the carry, and the condition that is left has no effect.

A batched predicate makes a `cond` run both branches, and a `while_loop` run finished lanes. A callback that must run
exactly once for each of its executions is refused there, as JAX refuses its own `io_callback`.

Under `grad` JAX evaluates what does not depend on a `scan`'s step or carry once, before the loop, callbacks with
constant operands too. They are left in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.interpreters import batching

from . import _jax
from ._effects import HostCallbackEffect, OnceEffect, VisibleEffect

_plain_while = batching.fancy_primitive_batchers[jax.lax.while_p]
_plain_cond = batching.fancy_primitive_batchers[jax.lax.cond_p]


def _has(effect_classes: type | tuple[type, ...], *jaxprs: Any) -> bool:
    return any(isinstance(effect, effect_classes) for jaxpr in jaxprs for effect in jaxpr.effects)


def _batch_cond(axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, branches: Any, **params: Any) -> Any:
    if dims[0] is not None and _has(OnceEffect, *branches):
        raise NotImplementedError(
            "IO effect not supported in vmap-of-cond with a batched predicate: JAX runs both branches for all elements "
            "then, and a callback that must run exactly once would run where it should not. Use jax.lax.map in place "
            "of vmap, or debug.callback or id_tap if running in both branches is right."
        )
    return _plain_cond(axis_data, operands, dims, branches=branches, **params)


def _batch_while(
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
        return _plain_while(axis_data, operands, dims, **params)
    if not _jax.predicate_is_batched(axis_data, dims, cond_nconsts, cond_jaxpr, body_nconsts, body_jaxpr):
        return _plain_while(axis_data, operands, dims, **params)
    if must_run_once:
        raise NotImplementedError(
            "IO effects not supported in while_loop with batched predicate: the loop runs until the last element is "
            "done, and a callback that must run exactly once would run for those that are. Use jax.lax.map in place of "
            "vmap, or debug.callback or id_tap if that is right."
        )

    condition = jex.jaxpr_as_fun(cond_jaxpr)
    body = jex.jaxpr_as_fun(body_jaxpr)

    def loop(*arguments: Any) -> Any:
        of_condition = arguments[:cond_nconsts]
        of_body = arguments[cond_nconsts : cond_nconsts + body_nconsts]
        initial = tuple(arguments[cond_nconsts + body_nconsts :])

        def step(carry: Any) -> Any:
            going, values = carry
            moved = body(*of_body, *values)
            # Always true before batching. After it, this keeps a finished lane as it was.
            kept = tuple(jax.lax.select(going, new, old) for new, old in zip(moved, values, strict=True))
            (going_on,) = condition(*of_condition, *kept)
            return going_on, kept

        (first,) = condition(*of_condition, *initial)
        return jax.lax.while_loop(lambda carry: carry[0], step, (first, initial))[1]

    # A carry that starts unbatched ends batched; batched from the start, the first tap looks like the others.
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
        axis_name=_jax.axis_name(axis_data),
        spmd_axis_name=axis_data.spmd_name,
    )
    outs = batched(*full)
    return list(outs), [0] * len(outs)


_jax.keep_in_scans(lambda jaxpr: _has((HostCallbackEffect, VisibleEffect, OnceEffect), jaxpr))
batching.fancy_primitive_batchers[jax.lax.cond_p] = _batch_cond
batching.fancy_primitive_batchers[jax.lax.while_p] = _batch_while
