"""What `result_shape` and `result_shape_dtypes` say (H3, X2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from . import _jax


@dataclasses.dataclass(frozen=True)
class ResultShape:
    """The tree, shapes and dtypes that a call must return."""

    tree: PyTreeDef
    avals: tuple[Any, ...]
    # The dtype of each leaf that is a typed key, whose words travel; None for the others.
    keys: tuple[Any, ...]

    @classmethod
    def of(cls, result_shape: Any) -> ResultShape:
        """Read `result_shape`, in which numbers and NumPy arrays may stand for results like them.

        Raises:
            ValueError: a leaf is no shape, or asks for 64 bits while x64 is off.
        """
        return cls._of(result_shape, "result_shape", examples=True)

    @classmethod
    def of_dtypes(cls, result_shape_dtypes: Any) -> ResultShape:
        """Read `result_shape_dtypes`, in which every leaf has a shape and a dtype and means them.

        Raises:
            ValueError: a leaf is no shape, or asks for 64 bits while x64 is off.
        """
        return cls._of(result_shape_dtypes, "result_shape_dtypes", examples=False)

    @classmethod
    def _of(cls, given: Any, name: str, examples: bool) -> ResultShape:
        # A PartitionSpec or the like may be a pytree leaf or not; only what has a shape and a dtype counts.
        leaves, tree = jax.tree_util.tree_flatten(given)
        parsed = [_leaf(leaf, ResultShapeError(given, name, leaf, examples), examples) for leaf in leaves]
        return cls(tree, tuple(aval for aval, _ in parsed), tuple(key for _, key in parsed))

    def restore(self, results: Sequence[Any]) -> Any:
        """The user's result from the arrays that the device received."""
        leaves = [
            result if key is None else jax.random.wrap_key_data(result, impl=_jax.key_implementation(key))
            for result, key in zip(results, self.keys, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.tree, leaves)


def _leaf(leaf: Any, malformed: ResultShapeError, examples: bool) -> tuple[Any, Any]:
    if examples and isinstance(leaf, (bool, int, float, complex)):
        return jax.core.ShapedArray((), jax.dtypes.canonicalize_dtype(np.result_type(leaf))), None
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or _jax.is_float0(leaf):
        raise malformed
    try:
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return jax.core.ShapedArray((*shape, *_jax.key_data_shape(dtype)), np.uint32), dtype
        canonical = jax.dtypes.canonicalize_dtype(dtype)
        shape = tuple(int(size) for size in shape)
    except (TypeError, ValueError) as error:
        raise malformed from error
    if any(size < 0 for size in shape) or np.dtype(dtype).kind in "OSUMm":
        raise malformed
    if canonical != dtype and not (examples and isinstance(leaf, (np.ndarray, np.generic))):
        # An example made by NumPy is 64 bits wide because that is NumPy's default, and JAX narrows it as usual; a
        # ShapeDtypeStruct says what it says.
        raise ValueError(
            f"{malformed.name} cannot specify 64-bit types when `jax_enable_x64` is disabled: it asks for "
            f"{np.dtype(dtype)}{list(shape)}, but 64-bit types need jax_enable_x64: set it (JAX_ENABLE_X64=1), or ask "
            f"for {canonical}."
        )
    return jax.core.ShapedArray(shape, canonical), None


class ResultShapeError(ValueError):
    """What was given does not describe a result."""

    def __init__(self, given: Any, name: str, leaf: Any, examples: bool):
        self.name = name
        needed = "The values must be either numeric scalars, or" if examples else "Each leaf"
        super().__init__(
            f"{name}={given!r} does not describe a result, because of {leaf!r}. It should be a pytree in the "
            f"structure of what the callback returns. {needed} must have 'shape' and 'dtype' attributes."
        )
