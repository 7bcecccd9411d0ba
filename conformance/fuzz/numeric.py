"""The operations of traced programs on NumPy, and their derivatives: all that a drawn program can contain, no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .description import WIDTH


def _broadcast_in_dim(params: Any, x: Any) -> Any:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slices(params: Any) -> tuple[slice, ...]:
    strides = params["strides"] or [1] * len(params["start_indices"])
    return tuple(map(slice, params["start_indices"], params["limit_indices"], strides))


def _window(params: Any, x: Any, starts: Any) -> tuple[slice, ...]:
    """As XLA has it, a start that is too far is moved back."""
    sizes = params["slice_sizes"]
    places = [min(max(int(start), 0), whole - size) for start, whole, size in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(place, place + size) for place, size in zip(places, sizes, strict=True))


def _select(params: Any, which: Any, *cases: Any) -> Any:
    return np.choose(np.broadcast_to(which, cases[0].shape).astype(int), cases).astype(cases[0].dtype)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": lambda params, x, y: x + y,
    "sub": lambda params, x, y: x - y,
    "mul": lambda params, x, y: x * y,
    "neg": lambda params, x: -x,
    "rem": lambda params, x, y: np.fmod(x, y),
    "and": lambda params, x, y: x & y,
    "gt": lambda params, x, y: x > y,
    "lt": lambda params, x, y: x < y,
    "clamp": lambda params, least, x, most: np.minimum(np.maximum(x, least), most),
    "select_n": _select,
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "reduce_sum": lambda params, x: x.sum(axis=tuple(params["axes"]), dtype=x.dtype),
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "slice": lambda params, x: x[_slices(params)],
    "squeeze": lambda params, x: x.squeeze(tuple(params["dimensions"])),
    "dynamic_slice": lambda params, x, *starts: x[_window(params, x, starts)],
    "stop_gradient": lambda params, x: x,
    # Of the interpreter itself: a step's part of what a scan runs over, and the results of the steps together.
    "part": lambda params, x: x[params["step"]],
    "stack": lambda params, *parts: np.stack(parts),
    # The derivative of another operation by one operand, and its transpose, with the other operands as they were.
    "direction": lambda params, tangent, *operands: _direction(params, tangent, *operands),
    "pull": lambda params, slope, *operands: np.asarray(
        PULLBACKS[params["of"]](params["params"], operands, slope)[params["place"]]
    ),
}


def _direction(params: Any, tangent: Any, *operands: Any) -> Any:
    """All operations but `mul` and `rem` are linear in their operands of floats."""
    if params["of"] == "rem":
        return tangent
    moved = [
        tangent if place == params["place"] else np.zeros_like(one) if np.issubdtype(one.dtype, np.floating) else one
        for place, one in enumerate(operands)
    ]
    return OPERATIONS[params["of"]](params["params"], *moved)


WITHOUT_DERIVATIVE = ("gt", "lt", "stop_gradient")


def loses_derivatives(name: str, params: Any) -> bool:
    to_whole = name == "convert_element_type" and not np.issubdtype(params["new_dtype"], np.floating)
    return to_whole or name in WITHOUT_DERIVATIVE


# Operations on whole arrays, with the axes of vmaps.


def _shared(axis: int, x: Any) -> Any:
    return np.broadcast_to(np.expand_dims(x, axis), (*x.shape[:axis], WIDTH, *x.shape[axis:]))


def _summed(axis: int, x: Any) -> Any:
    return np.broadcast_to(x.sum(axis=axis, keepdims=True, dtype=x.dtype), x.shape)


WHOLE: Mapping[str, Callable[[int, Any], Any]] = {
    "vary": lambda axis, x: x,
    "share": _shared,
    "leave": lambda axis, x: x,
    "first": lambda axis, x: np.take(x, 0, axis),
    "sum_lanes": _summed,
    "same": lambda axis, x: x,
    "relane": lambda axis, x: x,
}
"""A vector becomes lanes (`vary`), lanes share a value, lanes become a vector (`leave`), and what derivatives need."""

TRANSPOSED = {
    "vary": "leave",
    "share": "first",
    "leave": "vary",
    "first": "share",
    "sum_lanes": "same",
    "same": "same",
    "relane": "same",
}
"""What all lanes share has one cotangent, which is summed already when it comes to `share`."""


def _pull_broadcast(params: Any, operands: Any, slope: Any) -> list[Any]:
    axes = params["broadcast_dimensions"]
    added = tuple(axis for axis in range(len(params["shape"])) if axis not in axes)
    return [slope.sum(axis=added).reshape(operands[0].shape)]


def _pull_concatenate(params: Any, operands: Any, slope: Any) -> list[Any]:
    ends = np.cumsum([one.shape[params["dimension"]] for one in operands])[:-1]
    return list(np.split(slope, ends, params["dimension"]))


def _placed(like: Any, where: Any, slope: Any) -> Any:
    whole = np.zeros_like(like)
    whole[where] = slope
    return whole


def _pull_sum(params: Any, operands: Any, slope: Any) -> list[Any]:
    return [np.broadcast_to(np.expand_dims(slope, tuple(params["axes"])), operands[0].shape)]


def _unbroadcast(slope: Any, like: Any) -> Any:
    return slope if np.shape(slope) == np.shape(like) else np.sum(slope).astype(like.dtype)


PULLBACKS: Mapping[str, Callable[[Any, Any, Any], list[Any]]] = {
    "add": lambda params, operands, slope: [_unbroadcast(slope, one) for one in operands],
    "sub": lambda params, operands, slope: [_unbroadcast(slope, operands[0]), _unbroadcast(-slope, operands[1])],
    "neg": lambda params, operands, slope: [-slope],
    # The divisor of a remainder is a constant.
    "rem": lambda params, operands, slope: [slope, None],
    "select_n": lambda params, operands, slope: [
        None,
        *(np.where(operands[0].astype(int) == case, slope, np.zeros_like(slope)) for case in range(len(operands) - 1)),
    ],
    "convert_element_type": lambda params, operands, slope: [slope.astype(operands[0].dtype)],
    "broadcast_in_dim": _pull_broadcast,
    "reduce_sum": _pull_sum,
    "concatenate": _pull_concatenate,
    "slice": lambda params, operands, slope: [_placed(operands[0], _slices(params), slope)],
    "squeeze": lambda params, operands, slope: [slope.reshape(operands[0].shape)],
    "dynamic_slice": lambda params, operands, slope: [
        _placed(operands[0], _window(params, operands[0], operands[1:]), slope),
        *(None for _ in operands[1:]),
    ],
    "part": lambda params, operands, slope: [_placed(operands[0], params["step"], slope)],
    "stack": lambda params, operands, slope: list(slope),
}
"""The cotangents of the operands, from that of the result; None for an operand without one. `mul` is not linear."""
