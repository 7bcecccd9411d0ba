"""Two bugs of XLA that programs with a token, and nothing beside it, run into; a value beside the token avoids both.

Seen with JAX 0.12.0.1 and not with 0.10.2; JAX's own ordered callbacks have them too.

- A `shard_map` (or `pmap`) without any operand is inlined with control dependencies on the token. A simplification
  of its loops then leaves the old loop beside the new one, fifty times over, each with its callbacks.
- A `cond` without any result, followed by a call of a function that takes the token, makes the compiler contradict
  itself about the shape of a single token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax

logger = logging.getLogger("hostcb")

_DUMMY = jax.core.ShapedArray((), np.dtype(np.uint32))


def work_around(effect: Any) -> None:
    """Give programs with `effect`, an ordered one, a value beside the token where it would be alone."""
    for primitive, plain, make in (
        (_jax.shard_map_p, _jax.lower_shard_map, _shard_map_rule),
        (jax.lax.cond_p, _jax.lower_cond, _cond_rule),
    ):
        if primitive is None or plain is None:
            logger.debug("this JAX lowers shard_map or cond in a way unknown to hostcb: bugs of XLA are not avoided")
            continue
        mlir.register_lowering(primitive, make(plain, effect))


def _shard_map_rule(plain: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    def lower(context: Any, *operands: Any, jaxpr: Any, in_specs: Any, out_specs: Any, **params: Any) -> Any:
        if operands or effect not in jaxpr.effects:
            return plain(context, *operands, jaxpr=jaxpr, in_specs=in_specs, out_specs=out_specs, **params)
        # It goes in and comes out: what is not used is removed before it could help. Not a plain constant, which would
        # be moved inside.
        dummy = hlo.OptimizationBarrierOp([mlir.ir_constant(np.uint32(0))]).results[0]
        variable = jex.Var(_DUMMY)
        everywhere = jax.sharding.PartitionSpec()
        widened = context.replace(avals_in=[_DUMMY], avals_out=[*context.avals_out, _DUMMY])
        results = plain(
            widened,
            dummy,
            jaxpr=jaxpr.replace(invars=[variable], outvars=[*jaxpr.outvars, variable]),
            in_specs=(everywhere,),
            out_specs=(*out_specs, everywhere),
            **params,
        )
        context.set_tokens_out(widened.tokens_out)
        return list(results)[:-1]

    return lower


def _cond_rule(plain: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    def lower(context: Any, *operands: Any, branches: Sequence[Any], **params: Any) -> Any:
        if context.avals_out or not any(effect in branch.effects for branch in branches):
            return plain(context, *operands, branches=branches, **params)
        widened = context.replace(avals_out=[_DUMMY])
        plain(widened, *operands, branches=tuple(map(_with_result, branches)), **params)
        context.set_tokens_out(widened.tokens_out)
        return []

    return lower


def _with_result(branch: Any) -> Any:
    jaxpr = getattr(branch, "jaxpr", branch)
    changed = jaxpr.replace(outvars=[jex.Literal(np.uint32(0), _DUMMY)])
    return changed if jaxpr is branch else branch.replace(jaxpr=changed)
