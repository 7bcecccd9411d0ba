"""`shard_map` (and `pmap`) with callbacks.

Without any operand it is inlined with control dependencies on the token. A simplification of its loops then leaves the
old loop beside the new one, fifty times over, each with its callbacks. So it gets a dummy value.

Without operands and results it leaves nothing of itself in the program. So the compiler takes its callbacks for those
of the whole program: "Side-effect ops cannot be replicated", or "Side-effect HLO must have sharding". A dummy value
avoids this, too. Where nothing else names the devices, JAX compiles the program for one device; hostcb refuses it.

Under jit over a mesh, a `shard_map` gives the token that it takes a replicated sharding. If that is the token of a
callback outside of it, which has results, the compiler refuses the callback: "side-effect HLO cannot have a replicated
sharding". So the `shard_map` takes the token of an operation without side effects.

- docs/jax-bugs/shard-map-loop-without-operands.md: JAX >=0.11.2
- docs/jax-bugs/shard-map-without-values.md: JAX >=0.6.1,<0.7.0 or >=0.7.1
- docs/jax-bugs/ordered-before-shard-map.md: JAX >=0.7.0,<0.10.2 or >=0.12.0

Two more need a `shard_map` that is manual over some mesh axes and a nested `shard_map` over the other axes. hostcb
refuses programs of the first while it lowers them. Of the second, the first manual computation over axes of another
size makes the axes of size 1 manual too.

- docs/jax-bugs/nested-shard-map-aborts.md: JAX >=0.10.2,<0.11.2
- docs/jax-bugs/nested-shard-map-axis-of-one.md: JAX >=0.11.2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from .. import _compat
from .._compat import rules
from .._compat.extend import Var, hlo
from .._spec.callback import callbacks_in
from .._spec.effects import HARMLESS, effects_of
from .dummies import dummy_type


def work_around(effect: Any) -> None:
    """Avoid the bugs; `effect` is the one of ordered callbacks."""
    if _compat.shard_map_p is not None and _compat.lower_shard_map is not None:
        rules.register_lowering(_compat.shard_map_p, _shard_map_rule(_compat.lower_shard_map, effect))


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
        jaxpr, out_specs, variable = params["jaxpr"], params["out_specs"], Var(dummy_type())
        everywhere = jax.sharding.PartitionSpec()
        wider = context.replace(avals_in=[dummy_type()], avals_out=[*context.avals_out, dummy_type()])
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
