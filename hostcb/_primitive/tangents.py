"""`jax_host_callback_ad_transforms`: the old mode in which tangents and cotangents are tapped too (H16).

A jvp taps the pair (primals, tangents) with `("jvp",)` among the transforms. If only the primals are known, as in the
forward pass of grad, a tap without that entry gets the primals. In the backward pass a tap gets the cotangents, with
`("jvp",), ("transpose",)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad

from .. import _compat
from .._spec.callback import Float0, HostCallback, Transforms


def materialize(tangent: Any, primal: Any) -> Any:
    """Return the tangent as an array; a symbolic zero becomes zeros of `primal`'s tangent type."""
    if type(tangent) is not ad.Zero:
        return tangent
    if jax.numpy.issubdtype(jax.typeof(primal).dtype, np.inexact):
        return jax.numpy.zeros_like(primal)
    return np.zeros(np.shape(primal), jax.dtypes.float0)


def paired(callback: HostCallback, tangents: Sequence[Any]) -> HostCallback:
    """Return `callback` for (primals, tangents), both in its argument's tree; float0 tangents are no operands."""
    leaves = callback.arg_tree.num_leaves
    absent = list(callback.absent)
    absent_before = {position for position, _ in callback.absent}
    present_positions = [position for position in range(leaves) if position not in absent_before]
    absent += [(leaves + position, leaf) for position, leaf in callback.absent]
    absent += [
        (leaves + position, Float0(tuple(np.shape(tangent))))
        for position, tangent in zip(present_positions, tangents, strict=True)
        if _compat.is_float0(tangent)
    ]
    pair = jax.tree_util.treedef_tuple((callback.arg_tree, callback.arg_tree))
    return dataclasses.replace(
        callback, arg_tree=pair, absent=tuple(sorted(absent, key=lambda each: each[0])), primal=callback
    )


def jvp(primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """Tap primals and tangents together."""
    full = [materialize(tangent, primal) for tangent, primal in zip(tangents, primals, strict=True)]
    tangent_operands = [tangent for tangent in full if not _compat.is_float0(tangent)]
    changed = {
        **params,
        "callback": paired(params["callback"], full),
        "transforms": (*params["transforms"], ("jvp",)),
    }
    outs = primitive.bind(*primals, *tangent_operands, **changed)
    tapped = iter(outs[len(primals) :])
    tangents_out = [
        given if _compat.is_float0(each) else next(tapped) for given, each in zip(tangents, full, strict=True)
    ]
    return outs[: len(primals)], tangents_out


def is_pair(params: dict[str, Any]) -> bool:
    """Return whether a tap takes (primals, tangents), and jvp is its last transformation but for vmap."""
    return params["callback"].primal is not None and _last_jvp(params["transforms"]) is not None


def _last_jvp(transforms: Transforms) -> int | None:
    """Return the place of the last transformation but for vmap, if that is jvp."""
    # A pair has been through one at least.
    place = max(place for place, entry in enumerate(transforms) if entry[0] != "batch")
    return place if transforms[place] == ("jvp",) else None


def for_cotangents(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the tap of cotangents that replaces the tap of a pair in the backward pass."""
    pair = params["callback"]
    leaves = pair.primal.arg_tree.num_leaves
    absent = tuple((position - leaves, leaf) for position, leaf in pair.absent if position >= leaves)
    before, after = _around_jvp(params, slice(pair.primal.operand_count, None))
    transforms = (*before, ("jvp",), *after, ("transpose",))
    return {**params, "callback": dataclasses.replace(pair.primal, absent=absent), "transforms": transforms}


def unpaired(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a tap of the primals alone."""
    primal = params["callback"].primal
    before, after = _around_jvp(params, slice(primal.operand_count))
    return {**params, "callback": primal, "transforms": (*before, *after)}


def _around_jvp(params: dict[str, Any], operands: slice) -> tuple[Transforms, Transforms]:
    """Return the transformations before the jvp of a pair and after it, as some of the pair's operands have them."""
    transforms = params["transforms"]
    place = _last_jvp(transforms)
    assert place is not None
    batches = (("batch", dims[operands]) for _, dims in transforms[place + 1 :])
    # vmap leaves an equation alone if none of its operands is batched.
    return transforms[:place], tuple(batch for batch in batches if any(dim is not None for dim in batch[1]))


def transposed(params: dict[str, Any], cotangents: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters of the tap of these cotangents; float0 ones, of integers beside tangents, do not travel."""
    without_value = [_compat.is_float0(cotangent) for cotangent in cotangents]
    transforms = (*params["transforms"], ("transpose",))
    if not any(without_value):
        return {**params, "transforms": transforms}
    callback = params["callback"]
    absent_before = {position for position, _ in callback.absent}
    positions = [each for each in range(callback.arg_tree.num_leaves) if each not in absent_before]
    absent = [
        *callback.absent,
        *(
            (position, Float0(tuple(np.shape(cotangent))))
            for position, cotangent, is_absent in zip(positions, cotangents, without_value, strict=True)
            if is_absent
        ),
    ]
    changed = dataclasses.replace(callback, absent=tuple(sorted(absent, key=lambda each: each[0])))
    # `batch_dims` are those of the values that travel.
    transforms = tuple(
        ("batch", tuple(dim for dim, is_absent in zip(entry[1], without_value, strict=True) if not is_absent))
        if entry[0] == "batch" and len(entry[1]) == len(cotangents)
        else entry
        for entry in transforms
    )
    return {**params, "callback": changed, "transforms": transforms}
