"""Results whose shapes are a function of the operands' shapes (X7, D2)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from .._errors.headlines import what_it_did
from .._spec.kinds import Kind
from .._spec.naming import attribute, describe, subject
from .._spec.shapes import ResultShape, is_dtype

_ADVICE = (
    "It gets each array as a jax.ShapeDtypeStruct, which has a shape and a dtype and no value, in the arguments of the "
    "callback's function."
)


def is_shape_function(given: Any) -> bool:
    """Return whether `result_shape_dtypes` is a function. A class of numbers and a callable container are none."""
    is_one = callable(given) and not is_dtype(given) and jax.tree_util.all_leaves((given,))
    return is_one and attribute(given, "shape") is None


def shapes_by(kind: Kind, function: Any, shape_function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what the user's function of shapes returns; a note of what it raises has the words of hostcb."""
    try:
        return shape_function(*args, **kwargs)
    except Exception as error:
        # The class of the user's exception may refuse a note.
        with contextlib.suppress(Exception):
            error.add_note(
                f"{subject(kind.name, function)}: the function of its results' shapes, {describe(shape_function)}, "
                f"{what_it_did(error)}. {_ADVICE}"
            )
        raise


@dataclasses.dataclass(frozen=True)
class ShapeFunction:
    """The results of a callback before its operands are known."""

    kind: Kind
    function: Callable[..., Any]
    shape_function: Callable[..., Any]
    read: Callable[[Kind, Any, Any], ResultShape]

    def of_leaves(self, tree: PyTreeDef, leaves: Sequence[Any]) -> ResultShape:
        """Return the results for arguments with this tree and these leaves."""
        arguments = jax.tree_util.tree_unflatten(tree, leaves)
        args, kwargs = ((arguments,), {}) if self.kind.one_argument else arguments
        return self.read(
            self.kind, self.function, shapes_by(self.kind, self.function, self.shape_function, args, kwargs)
        )


def results_of(
    kind: Kind, function: Any, given: Any, read: Callable[[Kind, Any, Any], ResultShape]
) -> ResultShape | ShapeFunction:
    """Return the results that the user has described.

    Args:
        kind: the kind of callback.
        function: the user's function.
        given: `result_shape` or `result_shape_dtypes`.
        read: what reads a description without a function: `ResultShape.of` or `ResultShape.of_dtypes`.

    Raises:
        ValueError: a leaf is no shape, or asks for 64 bits while x64 is off.
    """
    return ShapeFunction(kind, function, given, read) if is_shape_function(given) else read(kind, function, given)
