"""Avoid eight bugs of XLA and JAX, five of them in programs with a token; JAX's own callbacks have them too.

Two bugs need a token without any value beside it (seen with JAX 0.12.0.1, not with 0.10.2). A dummy value avoids both:

- A `shard_map` (or `pmap`) without any operand is inlined with control dependencies on the token. A simplification
  of its loops then leaves the old loop beside the new one, fifty times over, each with its callbacks.
- A `cond` without any result, followed by a call of a function that takes the token, makes the compiler contradict
  itself about the shape of a single token.

One needs jit over a mesh (seen with JAX 0.12.0.1, not with 0.10.2):

- A `shard_map` gives the token that it takes a replicated sharding. If that is the token of a callback outside of it,
  which has results, the compiler refuses the callback: "side-effect HLO cannot have a replicated sharding". So the
  `shard_map` takes the token of an operation without side effects.

Two more need a `shard_map` that is manual over some mesh axes and a nested `shard_map` over the other axes:

- Up to JAX 0.11.0 Shardy gives the token of the outer `shard_map` a sharding that no token can have, and the compiler
  aborts the process. hostcb refuses such programs while it lowers them.
- JAX emits no manual computation over axes of size 1. If this leaves out the outer or the inner `shard_map`, the
  compiler of JAX 0.12.0.1 takes the token for replicated and refuses the callback. So the first manual computation
  over axes of another size makes the axes of size 1 manual too.

Two need no token. A `shard_map` that has no operands and no results leaves nothing of itself in the program.
So the compiler takes its callbacks for those of the whole program: "Side-effect ops cannot be replicated", or
"Side-effect HLO must have sharding". A dummy value avoids this one, too.

The other one is in XLA's compiler for CPU, which lets a library compute large reductions. It moves what a reduction
reads into the library's computation, and then removes it from the program if nothing else uses it. It forgets that the
result of a computation is used. So `y = x @ w; debug.print("{}", y.mean()); return y` does not compile: "dot_general.1
is live and cannot be removed". The result of a computation with several results is a tuple, which is not moved. An
ordered callback gives the computation a token as a second result. So only programs with unordered callbacks, and with
a computation that has one array as its result, are compiled without the library's reductions.

A bug of JAX concerns the same `shard_map`: JAX asks the operands and results of a `shard_map` for the devices of the
program. Where nothing else names the devices, it compiles the program for one device. hostcb refuses the program.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from .. import _compat
from .._compat import rules
from .._compat.token_bugs import with_all_tokens
from .._runtime.dispatch.programs import Program
from .._spec.callback import callbacks_in
from .._spec.effects import HARMLESS, effects_of


@functools.cache
def _dummy() -> Any:
    """The type of a value beside the token."""
    return jax.core.ShapedArray((), np.dtype(np.uint32))


def work_around(effect: Any) -> None:
    """Avoid the bugs; `effect` is the one of ordered callbacks."""
    if _compat.shard_map_p is not None and _compat.lower_shard_map is not None:
        rules.register_lowering(_compat.shard_map_p, _shard_map_rule(_compat.lower_shard_map, effect))
    _compat.compile_with(_without_library_reductions)
    if _compat.lower_cond is not None:
        rules.register_lowering(jax.lax.cond_p, _cond_rule(with_all_tokens(_compat.lower_cond), effect))


def _shard_map_rule(plain: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        effects = getattr(params.get("jaxpr"), "effects", ())
        alone = not operands and not context.avals_out
        if alone:
            _refuse_on_one_device(context, params)
        if effect not in effects:
            # Without operands and results, the compiler looks at its callbacks as if no manual computation were there.
            widens = alone and any(isinstance(each, HARMLESS) for each in effects)
            return widened(context, operands, params) if widens else plain(context, *operands, **params)
        if _compat.uses_shardy():
            _make_manual_with_size_one(params)
            _refuse_token_in_part(params["jaxpr"], params)
        inner = _with_token_of_its_own(context, effect)
        results = widened(inner, operands, params)
        context.set_tokens_out(inner.tokens_out)
        return results

    def widened(context: Any, operands: Any, params: dict[str, Any]) -> Any:
        if operands:
            return plain(context, *operands, **params)
        # The dummy is an operand and a result, since JAX removes unused values. A plain constant would be moved inside.
        dummy = hlo.OptimizationBarrierOp([mlir.ir_constant(np.uint32(0))]).results[0]
        jaxpr, out_specs, variable = params["jaxpr"], params["out_specs"], jex.Var(_dummy())
        everywhere = jax.sharding.PartitionSpec()
        wider = context.replace(avals_in=[_dummy()], avals_out=[*context.avals_out, _dummy()])
        params["jaxpr"] = jaxpr.replace(invars=[variable], outvars=[*jaxpr.outvars, variable])
        params.update(in_specs=(everywhere,), out_specs=(*out_specs, everywhere))
        results = plain(wider, dummy, **params)
        context.set_tokens_out(wider.tokens_out)
        return results[:-1]

    return lower


def _refuse_on_one_device(context: Any, params: dict[str, Any]) -> None:
    mesh, program = params.get("mesh"), context.module_context.axis_context
    callback = next((each for each in callbacks_in(params["jaxpr"]) if effects_of(each.kind)), None)
    if callback is None or mesh is None or isinstance(program, mlir.SPMDAxisContext):
        return
    if getattr(program, "num_devices", mesh.size) < mesh.size:
        raise NotImplementedError(
            f"{callback} was used in a shard_map or pmap over {mesh.size} devices that has no results and uses none of "
            f"its operands. Nothing names the devices of such a program to JAX {jax.__version__}, so it compiles the "
            "program for one device. Return a value from it and use that, call it under jax.set_mesh(mesh), or give "
            "the callback an operand of it."
        )


def _with_token_of_its_own(context: Any, effect: Any) -> Any:
    """Return the context of a `shard_map`, copied; the outermost one gets a token that no callback returned."""
    tokens = context.tokens_in
    if isinstance(context.module_context.axis_context, mlir.SPMDAxisContext):
        return context.replace()
    own = mlir.TokenSet({effect: hlo.AfterAllOp([tokens.get(effect)]).result})
    return context.replace(tokens_in=tokens.update_tokens(own))


def _size(mesh: Any, axes: Iterable[Any]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _make_manual_with_size_one(params: dict[str, Any]) -> None:
    """In the outermost manual computation, make the axes of size 1 manual as well."""
    mesh, newly = params.get("mesh"), params.get("newly_manual_axes")
    if mesh is not None and newly is not None and _size(mesh, mesh.manual_axes) == 1 < _size(mesh, newly):
        params["newly_manual_axes"] = newly | {axis for axis in mesh.axis_names if mesh.shape[axis] == 1}


def _refuse_token_in_part(jaxpr: Any, params: dict[str, Any]) -> None:
    mesh, newly = params.get("mesh"), params.get("newly_manual_axes")
    if not _compat.ABORTS_ON_TOKEN_IN_PART or mesh is None or newly is None or _size(mesh, newly) == 1:
        return
    manual = {*mesh.manual_axes, *newly}
    left = [axis for axis in mesh.axis_names if axis not in manual]
    if _size(mesh, left) > 1:
        callback = next((callback for callback in callbacks_in(jaxpr) if callback.kind.ordered), "a host callback")
        raise NotImplementedError(
            f"{callback} keeps an order and was used in a shard_map inside of another one, which is manual over "
            f"{sorted(map(str, manual))} only: the compiler of JAX {jax.__version__} ends the process there. Use one "
            "shard_map over all axes, jax.config.update('jax_use_shardy_partitioner', False), a newer JAX, or a "
            "callback that keeps no order."
        )


def _cond_rule(plain: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        branches = params.get("branches", ())
        if context.avals_out or not any(effect in branch.effects for branch in branches):
            return plain(context, *operands, **params)
        widened = context.replace(avals_out=[_dummy()])
        plain(widened, *operands, **{**params, "branches": tuple(map(_with_result, branches))})
        context.set_tokens_out(widened.tokens_out)
        return []

    return lower


def _with_result(branch: Any) -> Any:
    jaxpr = getattr(branch, "jaxpr", branch)
    changed = jaxpr.replace(outvars=[jex.Literal(np.uint32(0), _dummy())])
    return changed if jaxpr is branch else branch.replace(jaxpr=changed)


# The operations that a library computes. Without this option, these are single products of matrices, and reductions.
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"


def _without_library_reductions(module: Any, kept: Sequence[Any]) -> dict[str, str]:
    """Return the compiler options of a program; none if XLA's bug cannot concern it, or if the user has set the option.

    `kept` has the `Program` if the program has callbacks of hostcb.
    """
    ours = any(isinstance(each, Program) and each.effectful for each in kept or ())
    if not ours or _LIBRARY in os.environ.get("XLA_FLAGS", "") or not _returns_one_array(module):
        return {}
    return {_LIBRARY: _PRODUCTS}


def _returns_one_array(module: Any) -> bool:
    """Return whether the program or the body of a loop has one result, an array; XLA makes tuples of branches'."""
    found = False

    def look(operation: Any) -> Any:
        nonlocal found
        results = [result.type for result in operation.results]
        if operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
            results = operation.attributes["function_type"].value.results
        elif operation.name != "stablehlo.while":
            return mlir.ir.WalkResult.ADVANCE
        found = len(results) == 1 and isinstance(results[0], mlir.ir.ShapedType) and results[0].rank > 0
        return mlir.ir.WalkResult.INTERRUPT if found else mlir.ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found
