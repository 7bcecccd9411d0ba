"""The batching rule, for every kind of callback (H7, H8, X2, X3, X4, B4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from .._spec.callback import HostCallback
from .._spec.kinds import Kind
from .._spec.naming import shown, subject

Method: TypeAlias = Literal["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"]
# JAX's own callbacks have one more method, for old programs with `vectorized=True`.
ExternalMethod: TypeAlias = Literal[Method, "legacy_vectorized"]

METHODS: tuple[str, ...] = get_args(Method)
EXTERNAL_METHODS: tuple[str, ...] = get_args(ExternalMethod)

# Larger batches become a loop with one callback, since an unrolled program grows with the batch.
MOST_UNROLLED = 16


def check_method(kind: Kind, function: Any, vmap_method: Any, methods: Sequence[str] = METHODS) -> None:
    """Refuse an unknown method when the callback is made rather than when it is batched."""
    if vmap_method is not None and vmap_method not in methods:
        raise ValueError(
            f"{subject(kind.name, function)}: vmap_method must be one of the allowed methods, None or "
            f"{', '.join(map(repr, methods))}, but got: {shown(vmap_method)}."
        )


def batch_callback(primitive: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """The batching rule of the primitive."""
    callback: HostCallback = params["callback"]
    kind = callback.kind
    if kind.batching == "transforms":
        # JAX and host_callback both mark an unbatched operand with None.
        batched = {**params, "transforms": (*params["transforms"], ("batch", tuple(dims)))}
        return primitive.bind(*operands, **batched), list(dims)
    method = params["vmap_method"] if kind.batching == "method" else kind.batching
    if method in (None, "refuse"):
        raise (NotImplementedError if method is None else kind.refusal)(
            kind.refuses_batching.format(callback=callback.name, kind=kind.name)
        )
    # An unbatched operand may be a Python number, a literal of the traced program.
    arrays = [_typed(operand, jax.typeof(operand).dtype) for operand in operands]
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims, strict=True)]
    batched_operands = [dim is not None for dim in dims]
    if method in ("sequential", "loop"):
        outs = _one_by_one(primitive, moved, batched_operands, size, params, unroll=False)
    elif method == "sequential_unrolled":
        outs = _one_by_one(primitive, moved, batched_operands, size, params, unroll=True)
    elif method == "unroll":
        outs = _one_by_one(primitive, moved, batched_operands, size, params, unroll=size <= MOST_UNROLLED)
    else:
        outs = _all_at_once(primitive, moved, batched_operands, size, params, method)
    return outs, [0] * len(outs)


def _typed(value: Any, dtype: Any) -> Any:
    # JAX narrows 64 bits with x64 off even where the value has them.
    with jax.enable_x64(True):
        return jnp.asarray(value, dtype=dtype)


def _one_by_one(
    primitive: Any, operands: Sequence[Any], batched: Sequence[bool], size: int, params: dict[str, Any], unroll: bool
) -> list[Any]:
    """Make one call for each element, in order, as a loop over the batch would."""

    def one(elements: Sequence[Any]) -> list[Any]:
        left = iter(elements)
        full = [next(left) if is_batched else x for x, is_batched in zip(operands, batched, strict=True)]
        return list(primitive.bind(*full, **params))

    mapped = [_whole_along_batch(x) for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    if not unroll:
        return _mapped(one, mapped, [aval.dtype for aval in params["result_avals"]])
    rows = [one([x[i] for x in mapped]) for i in range(size)]
    if not rows:
        return [_typed(np.zeros((0, *aval.shape), aval.dtype), aval.dtype) for aval in params["result_avals"]]
    return [jnp.stack(column) for column in zip(*rows, strict=True)]


def _mapped(one: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """`jax.lax.map`, with elements of less than a byte in bytes between the steps.

    XLA packs them on GPUs, and does not compile a loop that takes one of them after the other: "Non-byte-aligned
    dimension in slice", with JAX 0.10.2 and 0.12.0.1.
    """

    def step(elements: Sequence[Any]) -> list[Any]:
        return _as(_in_bytes(results), one(_as([x.dtype for x in arrays], elements)))

    return _as(results, jax.lax.map(step, _as(_in_bytes([x.dtype for x in arrays]), arrays)))


def _as(dtypes: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    return [x if x.dtype == dtype else x.astype(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]


def _in_bytes(dtypes: Sequence[Any]) -> list[Any]:
    return [_BYTES.get(str(dtype), dtype) for dtype in dtypes]


# By name, since a release of JAX may lack one. All values of the type are among those of the byte.
_BYTES = {
    "int2": jnp.int8,
    "int4": jnp.int8,
    "uint2": jnp.uint8,
    "uint4": jnp.uint8,
    "float4_e2m1fn": jnp.float8_e4m3fn,
}


def _whole_along_batch(x: Any) -> Any:
    """Return `x` with its first axis unsharded, so that it can be sliced; only explicit meshes need this."""
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or sharding.spec[:1] in ((), (None,)):
        return x
    return jax.sharding.reshard(x, sharding.update(spec=(None, *sharding.spec[1:])))


def _all_at_once(
    primitive: Any, operands: Sequence[Any], batched: Sequence[bool], size: int, params: dict[str, Any], method: str
) -> list[Any]:
    """Make one call, with a leading axis on every batched operand; the method decides on the others."""
    # An operand that shares its memory with a result needs the result's shape.
    shared = {operand for operand, _ in params["callback"].aliases}

    def full(position: int, x: Any) -> Any:
        if batched[position]:
            return x
        if method == "broadcast_all" or position in shared:
            return jnp.broadcast_to(x[None], (size, *x.shape))
        return x if method == "legacy_vectorized" else x[None]

    result_avals = tuple(jax.core.ShapedArray((size, *aval.shape), aval.dtype) for aval in params["result_avals"])
    widened = [full(position, x) for position, x in enumerate(operands)]
    callback = dataclasses.replace(params["callback"], batched_by=method)
    return list(primitive.bind(*widened, **{**params, "callback": callback, "result_avals": result_avals}))
