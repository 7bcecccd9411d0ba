"""How a call is batched when its user says how (H8, with the methods of X2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._callback import HostCallback

METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")


def check_method(vmap_method: Any) -> None:
    """Refuse an unknown method when the call is made rather than when it is batched."""
    if vmap_method is not None and vmap_method not in METHODS:
        raise ValueError(f"vmap_method must be None or one of {', '.join(METHODS)}, got {vmap_method!r}.")


def batch_call(primitive: Any, operands: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The batching rule of a call."""
    callback: HostCallback = params["callback"]
    method = params["vmap_method"]
    if method is None:
        raise NotImplementedError(callback.kind.refuses_batching.format(callback=callback.name))
    # What is not batched may be a plain number, a literal of the traced program.
    arrays = [jnp.asarray(operand, dtype=jax.typeof(operand).dtype) for operand in operands]
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims, strict=True)]
    batched = [dim is not None for dim in dims]
    if method.startswith("sequential"):
        outs = _one_by_one(primitive, moved, batched, size, params, unroll=method == "sequential_unrolled")
    else:
        outs = _all_at_once(primitive, moved, batched, size, params, repeat=method == "broadcast_all")
    return outs, [0] * len(outs)


def _one_by_one(
    primitive: Any, operands: Sequence[Any], batched: Sequence[bool], size: int, params: dict[str, Any], unroll: bool
) -> list[Any]:
    """One call for each element, in order, as if the batch were a loop."""

    def one(elements: Sequence[Any]) -> list[Any]:
        left = iter(elements)
        full = [next(left) if is_batched else x for x, is_batched in zip(operands, batched, strict=True)]
        return list(primitive.bind(*full, **params))

    mapped = [x for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    if not unroll:
        return list(jax.lax.map(one, mapped))
    rows = [one([x[i] for x in mapped]) for i in range(size)]
    if not rows:
        return [jnp.zeros((0, *aval.shape), aval.dtype) for aval in params["result_avals"]]
    return [jnp.stack(column) for column in zip(*rows, strict=True)]


def _all_at_once(
    primitive: Any, operands: Sequence[Any], batched: Sequence[bool], size: int, params: dict[str, Any], repeat: bool
) -> list[Any]:
    """One call with a leading axis on every operand, of size 1 where it was not batched unless `repeat`."""
    full = [
        x if is_batched else jnp.broadcast_to(x[None], (size if repeat else 1, *x.shape))
        for x, is_batched in zip(operands, batched, strict=True)
    ]
    result_avals = tuple(jax.core.ShapedArray((size, *aval.shape), aval.dtype) for aval in params["result_avals"])
    return list(primitive.bind(*full, **{**params, "result_avals": result_avals}))
