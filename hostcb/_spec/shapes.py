"""Read `result_shape` and `result_shape_dtypes` (H3, X2); the size of an abstract value."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from .. import _compat
from .kinds import Kind
from .naming import shown, subject

_NO_DEVICE_HAS = (np.longdouble, np.clongdouble)


@dataclasses.dataclass(frozen=True)
class ResultShape:
    """The tree, shapes and dtypes that a call must return."""

    tree: PyTreeDef
    avals: tuple[Any, ...]
    # The dtype of each leaf that is a typed PRNG key, which crosses as its words; None for other leaves.
    keys: tuple[Any, ...]

    @classmethod
    def of(cls, kind: Kind, function: Any, result_shape: Any) -> ResultShape:
        """Read `result_shape`, in which a number or a NumPy array may be an example of a result.

        Raises:
            ValueError: a leaf is no shape, or asks for 64 bits while x64 is off.
        """
        return cls._of(kind, function, result_shape, "result_shape", examples=True)

    @classmethod
    def of_dtypes(cls, kind: Kind, function: Any, result_shape_dtypes: Any) -> ResultShape:
        """Read `result_shape_dtypes`, in which every leaf states an exact shape and dtype.

        Raises:
            ValueError: a leaf is no shape, or asks for 64 bits while x64 is off and is not written in place.
        """
        return cls._of(kind, function, result_shape_dtypes, "result_shape_dtypes", examples=False)

    @classmethod
    def _of(cls, kind: Kind, function: Any, given: Any, name: str, examples: bool) -> ResultShape:
        # Objects such as PartitionSpec may be pytree leaves or not. Only leaves with a shape and a dtype are valid.
        leaves, tree = jax.tree_util.tree_flatten(given)
        parsed = []
        for leaf in leaves:
            found = _leaf(kind, function, leaf, name, examples)
            if found is None:
                raise _no_description(kind, function, given, name, leaf, examples)
            parsed.append(found)
        return cls(tree, tuple(aval for aval, _ in parsed), tuple(key for _, key in parsed))

    def restore(self, results: Sequence[Any]) -> Any:
        """Return the user's result: the received arrays in their tree, with typed PRNG keys restored."""
        leaves = [
            result if key is None else jax.random.wrap_key_data(result, impl=_compat.key_implementation(key))
            for result, key in zip(results, self.keys, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _leaf(kind: Kind, function: Any, leaf: Any, name: str, examples: bool) -> tuple[Any, Any] | None:
    """Return the aval of a leaf, and its dtype if it is a typed key or else None; None if the leaf is no shape."""
    if _compat.is_float0(leaf):
        return None
    try:
        if examples and isinstance(leaf, (bool, int, float, complex)):
            return jax.core.ShapedArray((), jax.dtypes.canonicalize_dtype(np.result_type(leaf))), None
        # The leaf may be any object by mistake, and reading its attributes may raise any exception.
        shape, dtype = leaf.shape, leaf.dtype
        if shape is None or dtype is None:
            return None
        shape = tuple(operator.index(size) for size in shape)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jax.core.ShapedArray((*shape, *_compat.key_data_shape(dtype)), np.uint32), dtype
        # An in-place function gets the memory of the device, so its results are never converted.
        canonical = np.dtype(dtype) if kind.in_place else jax.dtypes.canonicalize_dtype(dtype)
        if any(size < 0 for size in shape) or np.dtype(dtype).kind in "OSUMm" or np.dtype(dtype).type in _NO_DEVICE_HAS:
            return None
    except Exception:
        return None
    if canonical != dtype and not (examples and isinstance(leaf, (np.ndarray, np.generic))):
        # A NumPy example has 64 bits because that is NumPy's default, so JAX narrows it as usual. A ShapeDtypeStruct
        # means its 64 bits.
        raise ValueError(
            f"{subject(kind.name, function)}: {name} cannot specify 64-bit types when `jax_enable_x64` is disabled: it "
            "asks for "
            f"{np.dtype(dtype)}{list(shape)}, but 64-bit types need jax_enable_x64: set it (JAX_ENABLE_X64=1), or ask "
            f"for {canonical}."
        )
    return jax.core.ShapedArray(shape, canonical), None


def _no_description(kind: Kind, function: Any, given: Any, name: str, leaf: Any, examples: bool) -> ValueError:
    because = "" if leaf is given else f", because of {shown(leaf)}"
    needed = "The values must be either numeric scalars, or" if examples else "Each leaf"
    return ValueError(
        f"{subject(kind.name, function)}: {name}={shown(given)} does not describe a result{because}. "
        f"It should be a pytree in the structure of what the callback returns. {needed} must have "
        f"'shape' and 'dtype' attributes, as jax.ShapeDtypeStruct(shape, dtype) has.{_advice_on(given)}"
    )


def struct_of(operand: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of an operand, with the dtype that it has in the program: of 32 bits while x64 is off."""
    aval = jax.typeof(operand)
    return jax.ShapeDtypeStruct(aval.shape, jax.dtypes.canonicalize_dtype(aval.dtype))


def size_of(aval: Any) -> int:
    """Return the size in bytes of a NumPy array of this aval."""
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


def _advice_on(given: Any) -> str:
    """Return the advice for a description of a result that lacks the dtype or the shape; "" if it is no such slip."""
    pair = given if isinstance(given, (list, tuple)) and len(given) == 2 else (given, None)
    if _is_shape(given):
        return f" This looks like a shape: use jax.ShapeDtypeStruct({tuple(given)}, dtype)."
    if _is_shape(pair[0]) and is_dtype(pair[1]):
        return f" This looks like a shape and a dtype: use jax.ShapeDtypeStruct({tuple(pair[0])}, {_name(pair[1])})."
    if is_dtype(given):
        return f" This looks like a dtype: use jax.ShapeDtypeStruct(shape, {_name(given)})."
    return ""


def _is_shape(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and bool(given) and all(type(size) is int for size in given)


def _name(dtype: Any) -> str:
    return f"jnp.{np.dtype(dtype).name}"


def is_dtype(given: Any) -> bool:
    """Return whether this is a dtype, or a type of numbers such as `jnp.float32`."""
    with contextlib.suppress(Exception):
        # A class of the user's may have any attribute `dtype`.
        return isinstance(given, (np.dtype, type)) and np.dtype(given) != object
    return False
