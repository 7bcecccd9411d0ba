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
    place = f" on {device}" if device is not None else ""
    asked = "result_shape" if callback.kind.one_argument else "result_shape_dtypes"
    return (
        f"the result of {callback}{place} was refused: expected {show(callback, avals)}, got int8[12345], which stands "
        f"for a failed callback. The failure: {reason.strip()}\n"
        f"Correct the callback, or {asked} if it is right as it is. hostcb.barrier_wait() reports it as well."
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
    strict = callback.kind.one_argument
    tree = jax.tree_util.tree_structure(result)
    if tree != callback.result_tree and (strict or not _same_names(result, callback)):
        raise TypeError(_wrong_tree(tree, callback, avals, result))
    leaves = jax.tree_util.tree_leaves(result)
    arrays = [to_array(leaf, callback.name) for leaf in leaves]
    converted = [canonical(array, aval) for array, aval in zip(arrays, avals, strict=True)]
    if any(array is None for array in converted):
        if not strict:
            raise TypeError(_wrong_leaf(arrays, converted, callback, avals))
        actual = jax.tree_util.tree_unflatten(tree, [Shown(_show_array(array)) for array in arrays])
        raise TypeError(
            f"Callback func {callback.name} should have returned a result with abstract values "
            f"{show(callback, avals)} but returned {actual!r}"
        )
    return [array for array in converted if array is not None]


def _same_names(result: Any, callback: HostCallback) -> bool:
    """Whether a result in other containers can be meant: as many leaves, and where they have names, the same ones."""
    tree: Any = callback.result_tree
    expected = jax.tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
    return _names(result) == _names(expected)


def _names(tree: Any) -> list[list[Any]]:
    # A list in place of a tuple is the same, and so is a tuple of one in place of its item; a dict with other keys is
    # not.
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [[key.key for key in path if isinstance(key, jax.tree_util.DictKey)] for path in paths]


def _wrong_tree(tree: Any, callback: HostCallback, avals: Sequence[Any], result: Any) -> str:
    if callback.kind.one_argument:
        hint = "" if avals or result is None else ". No result_shape was given: pass one for a result to return"
        return (
            f"Callback func {callback.name} should have returned a result with pytree {callback.result_tree} "
            f"but returned {tree}{hint}"
        )
    return (
        f"Mismatched number of outputs from callback. Expected: {len(avals)}, Actual: {tree.num_leaves}. "
        f"{callback.name} should have returned {show(callback, avals)} but returned the tree {tree}"
    )


def _wrong_leaf(
    arrays: Sequence[np.ndarray], converted: Sequence[Any], callback: HostCallback, avals: Sequence[Any]
) -> str:
    index = next(i for i, array in enumerate(converted) if array is None)
    array, aval = arrays[index], avals[index]
    if array.shape != tuple(aval.shape):
        wrong = f"shape for return value #{index}: Expected: {tuple(aval.shape)}, Actual: {array.shape}"
    else:
        wrong = f"dtype for return value #{index}: Expected: {aval.dtype}, Actual: {array.dtype}"
    return f"Incorrect output {wrong}. {callback.name} should have returned {show(callback, avals)}"


def _show_array(array: np.ndarray) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def to_array(leaf: Any, name: str) -> np.ndarray:
    """What the callback called `name` returned for a leaf, as an array that a device could hold."""
    if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise TypeError(f"Callback func {name} returned a masked array: fill it, JAX has no masks")
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMmV" and array.dtype.isbuiltin != 2:
        raise TypeError(f"Callback func {name} returned an array of dtype {array.dtype}, which no device can hold")
    return array.astype(array.dtype.newbyteorder("="), copy=False) if not array.dtype.isnative else array


def canonical(array: np.ndarray, aval: Any) -> np.ndarray | None:
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
