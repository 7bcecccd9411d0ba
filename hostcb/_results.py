"""The boundary that every value from the host crosses: checked here, or refused (H3, H15).

The runtime's own targets do not compare shapes or dtypes; a wrong array corrupts memory. So a failed call hands over
the mark `int8[12345]` in place of its result, as host_callback did, and the receiving end, which is ours, refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from ._callback import HostCallback

# Known by identity: an honest int8[12345] result is another object.
ERROR_MARK = np.arange(12345).astype(np.int8)


class Refused(tuple[np.ndarray, ...]):
    """What a failed call hands over: the mark, and why."""

    failure: BaseException

    def __new__(cls, failure: BaseException) -> Self:
        made = super().__new__(cls, (ERROR_MARK,))
        made.failure = failure
        return made


class RefusedResultError(Exception):
    """The device refuses what a failed call handed over, and its computation ends."""


def refusal(callback: HostCallback, avals: Sequence[Any], device: Any, reason: str) -> str:
    """The text that the user sees when a computation was ended by a failed call."""
    return (
        f"the result of {callback} on {device} was refused: expected {show(callback, avals)}, got int8[12345], which "
        f"stands for a failed callback. The failure: {reason.strip()}\n"
        "Correct the callback, or result_shape if it is right as it is. hostcb.barrier_wait() reports it as well."
    )


def show(callback: HostCallback, avals: Sequence[Any]) -> str:
    """The expected abstract values in the tree that the callback should return."""
    if callback.result_tree is None:
        return "no result"
    shown = [Shown(f"{aval.dtype}[{','.join(map(str, aval.shape))}]") for aval in avals]
    return repr(jax.tree_util.tree_unflatten(callback.result_tree, shown))


class Shown:
    """A leaf whose repr is its abstract value."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def conform(result: Any, callback: HostCallback, avals: Sequence[Any]) -> Sequence[np.ndarray]:
    """The arrays to send to the device for what `callback` returned.

    Raises:
        TypeError: `result` is not what `result_shape` promised; the message names the callback, what was expected
            and what came.
    """
    if type(result) is np.ndarray and len(avals) == 1:
        aval = avals[0]
        if result.dtype == aval.dtype and result.shape == aval.shape and callback.returns_one_array:
            return (result,)
    tree = jax.tree_util.tree_structure(result)
    if tree != callback.result_tree:
        hint = "" if avals or result is None else ". No result_shape was given: pass one for a result to return"
        raise TypeError(
            f"Callback func {callback.name} should have returned a result with pytree {callback.result_tree} "
            f"but returned {tree}{hint}"
        )
    leaves = jax.tree_util.tree_leaves(result)
    arrays = [_to_array(leaf, callback) for leaf in leaves]
    converted = [_canonical(array, aval) for array, aval in zip(arrays, avals, strict=True)]
    if any(array is None for array in converted):
        actual = jax.tree_util.tree_unflatten(tree, [Shown(_show_array(array)) for array in arrays])
        raise TypeError(
            f"Callback func {callback.name} should have returned a result with abstract values "
            f"{show(callback, avals)} but returned {actual!r}"
        )
    return [array for array in converted if array is not None]


def _show_array(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _to_array(leaf: Any, callback: HostCallback) -> np.ndarray:
    if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise TypeError(f"Callback func {callback.name} returned a masked array: fill it, JAX has no masks")
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMmV" and array.dtype.isbuiltin != 2:
        raise TypeError(
            f"Callback func {callback.name} returned an array of dtype {array.dtype}, which no device can hold"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False) if not array.dtype.isnative else array


def _canonical(array: np.ndarray, aval: Any) -> np.ndarray | None:
    """`array` as the device expects it, or None where it does not match."""
    if array.shape != tuple(aval.shape):
        return None
    if array.dtype == aval.dtype:
        return array
    # With x64 off Python's and NumPy's 64-bit defaults become 32-bit ones, as everywhere in JAX.
    if jax.dtypes.canonicalize_dtype(array.dtype) != aval.dtype:
        return None
    narrowed = array.astype(aval.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(narrowed, array):
        # Wrapping round would be a silently wrong number.
        return None
    return narrowed
