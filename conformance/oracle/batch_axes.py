"""The axes of a batched operand in the order of the model.

`transforms` says where each vmap has put its axis: JAX's own rules decide it, and they differ between releases. The
model has the axis of the outermost vmap first. An operand is right if it is the model's after its axes have moved as
`transforms` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from ..model.worlds import ExpectedEvent
from ..spec.data import printed
from .history import Event

Dims = tuple[int | None, ...]


def in_order(event: Event, expected: Iterable[ExpectedEvent]) -> Event:
    """The event with the axis of each vmap moved to the front; the same event if its `transforms` do not fit."""
    entries = _batch_dims(event.transforms, len(event.leaves))
    if not entries:
        return event
    if any(leaf.dtype.kind == "U" for leaf in event.leaves):
        return _printed_in_order(event, [dims[0] for dims in entries], expected)
    leaves = []
    for leaf, dims in zip(event.leaves, zip(*entries, strict=True), strict=True):
        leaves.append(moved(leaf, dims))
    if any(leaf is None for leaf in leaves):
        return event
    return replace(event, leaves=tuple(leaves), transforms=at_the_front(event.transforms))


def _printed_in_order(event: Event, dims: Sequence[Any], expected: Iterable[ExpectedEvent]) -> Event:
    """A text has no axes: it is compared with the texts of the expected arrays, their axes moved as `dims` says."""
    for one in expected:
        if one.site != event.site or one.array is None or one.array.ndim < len(dims):
            continue
        axes = list(range(len(dims), one.array.ndim))
        for level, dim in zip(reversed(range(len(dims))), dims, strict=True):
            axes.insert(dim or 0, level)
        if printed("id_print", one.array.transpose(axes)) == str(event.leaves[0]):
            return replace(event, leaves=one.leaves, transforms=at_the_front(event.transforms))
    return event


def _batch_dims(transforms: Any, count: int) -> list[Dims]:
    """The axes of each vmap, the innermost first; empty if there are none, or not one for each leaf."""
    try:
        entries = [tuple(entry["batch_dims"]) for name, entry in transforms if name == "batch"]
    except (TypeError, ValueError, KeyError):
        return []
    return entries if all(len(dims) == count for dims in entries) else []


def moved(leaf: Any, dims: Any) -> Any:
    """The leaf with these axes in front, the outermost first; None if it has no such axes."""
    rest = list(range(leaf.ndim))
    front = []
    # Each axis counts in the operand as the vmap gave it to the next outer one.
    for dim in reversed(dims):
        if dim is None:
            continue
        if not isinstance(dim, int) or not 0 <= dim < len(rest):
            return None
        front.append(rest.pop(dim))
    return leaf.transpose(front + rest)


def at_the_front(transforms: Any) -> Any:
    return tuple(
        (name, {"batch_dims": tuple(None if dim is None else 0 for dim in entry["batch_dims"])})
        if name == "batch"
        else (name, entry)
        for name, entry in transforms
    )


def has_other_axes(event: Event, leaves: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether the event has these leaves, with their axes in any order."""
    return len(event.leaves) == len(leaves) and all(
        _is_transposed(found, wanted) for found, wanted in zip(event.leaves, leaves, strict=True)
    )


def _is_transposed(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> bool:
    if found.dtype != wanted.dtype or sorted(found.shape) != sorted(wanted.shape):
        return False
    orders = itertools.permutations(range(found.ndim))
    return any(
        found.transpose(order).shape == wanted.shape and found.transpose(order).tobytes() == wanted.tobytes()
        for order in orders
    )
