"""Check every result before it leaves the host, and convert it to the arrays that the device receives (H3, H15).

The runtime's targets do not compare shapes or dtypes, so a wrong array would corrupt memory. The handler raises instead
of returning it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors.advice import NO_SHAPE, on_result
from .._errors.headlines import abstract
from .._errors.refusals import in_containers, instead, mismatched, show, text_of
from .._spec.callback import HostCallback
from .._spec.naming import shown

_NONE = jax.tree_util.tree_structure(None)


def conform(result: Any, callback: HostCallback, avals: Sequence[Any], devices: int = 1) -> Sequence[np.ndarray]:
    """Check the result of a callback on one of so many devices, and convert it to the arrays that the device receives.

    Raises:
        TypeError: `result` does not match `result_shape`. The message names the callback, the expected and the
            returned value.
    """
    strict = callback.kind.one_argument
    tree = jax.tree_util.tree_structure(result)
    if tree != callback.result_tree and (strict or not same_names(result, callback.result_tree)):
        text, did = _wrong_tree(tree, callback, avals, result), instead(result, show(callback, avals))
        advice = on_result(callback, result, avals, devices)
        raise mismatched(text, did + _why(callback, result, advice), advice)
    leaves = jax.tree_util.tree_leaves(result)
    arrays = [to_array(leaf, callback.name) for leaf in leaves]
    converted = [canonical(array, aval) for array, aval in zip(arrays, avals, strict=True)]
    if any(array is None for array in converted):
        too_large = _too_large(arrays, avals)
        did = instead(result, show(callback, avals)) + too_large.partition(",")[0]
        advice = None if too_large else on_result(callback, result, avals, devices)
        if not strict:
            raise mismatched(_wrong_leaf(arrays, converted, callback, avals), did, advice)
        raise mismatched(
            f"Callback func {callback.name} should have returned a result with abstract values "
            f"{show(callback, avals)} but returned {in_containers(tree, arrays)}{too_large}",
            did,
            advice,
        )
    return [array for array in converted if array is not None]


def _why(callback: HostCallback, result: Any, advice: str | None) -> str:
    """Say in the first line, too, that `result_shape` is the error."""
    if callback.kind.one_argument and callback.result_tree == _NONE and result is not None:
        return ": no result_shape was given"
    return f": {NO_SHAPE}" if advice is not None and advice.startswith(NO_SHAPE) else ""


def same_names(result: Any, tree: Any) -> bool:
    """Return whether a result in other containers is accepted: it has as many leaves and the same dict keys."""
    expected = _names_in(tree)
    return expected is not None and _names(result) == expected


def _names_in(tree: Any) -> list[list[Any]] | None:
    """Return the dict keys that lead to each leaf; None if a container of the user's cannot be made to show them."""
    # JAX asks containers to take `object()` as a leaf. Those that take arrays alone may take one of these.
    for leaf in (object(), np.zeros(()), np.ones(()), 0):
        with contextlib.suppress(Exception):
            return _names(jax.tree_util.tree_unflatten(tree, [leaf] * tree.num_leaves))
    return None


def _names(tree: Any) -> list[list[Any]]:
    # Only dict keys count: a list may stand for a tuple, and a tuple of one for its item, but dict keys must match.
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [[key.key for key in path if isinstance(key, jax.tree_util.DictKey)] for path in paths]


def _wrong_tree(tree: Any, callback: HostCallback, avals: Sequence[Any], result: Any) -> str:
    if callback.kind.one_argument:
        hint = "" if avals or result is None else ". No result_shape was given: pass one for a result to return"
        return (
            f"Callback func {callback.name} should have returned a result with pytree {text_of(callback.result_tree)} "
            f"but returned {text_of(tree)}{hint}"
        )
    what = mismatch(tree, callback.result_tree)
    return f"{what}. {callback.name} should have returned {show(callback, avals)} but returned the tree {text_of(tree)}"


def mismatch(actual: Any, expected: Any) -> str:
    """Describe the difference between the tree of a result and the expected tree."""
    if actual.num_leaves != expected.num_leaves:
        return (
            f"Mismatched number of outputs from callback. Expected: {expected.num_leaves}, Actual: {actual.num_leaves}"
        )
    keys = [_keys(tree) for tree in (expected, actual)]
    if None in keys:
        return (
            f"Mismatched tree of outputs from callback: a container takes no leaf that could stand for a result, so it "
            f"is accepted in the promised containers alone. Expected: {text_of(expected)}, Actual: {text_of(actual)}"
        )
    return f"Mismatched tree of outputs from callback: the keys of dicts differ. Expected: {keys[0]}, Actual: {keys[1]}"


def _keys(tree: Any) -> str | None:
    """Describe a tree by its number of leaves and the dict keys that lead to each leaf, if it shows them."""
    names = _names_in(tree)
    if names is None:
        return None
    keys = ", ".join(".".join(map(str, path)) if path else "none" for path in names)
    return f"{tree.num_leaves} with the keys {keys}"


def _too_large(arrays: Sequence[np.ndarray], avals: Sequence[Any]) -> str:
    """Describe the first integer that does not fit its expected type; return "" if all integers fit."""
    return next((f": {found}" for found in map(out_of_range, arrays, avals) if found), "")


def out_of_range(array: np.ndarray, aval: Any) -> str | None:
    """Describe an integer of `array` that does not fit the type of `aval`; None if that is not the only error."""
    wanted = np.dtype(aval.dtype)
    if array.shape != tuple(aval.shape) or array.dtype.kind not in "iu" or wanted.kind not in "iu" or not array.size:
        return None
    if array.dtype.itemsize < 8:
        # Only 64-bit integers are defaults of Python and NumPy. A narrower type was chosen, so the dtype is the error.
        return None
    limits = np.iinfo(wanted)
    wrong = next((each for each in (int(array.min()), int(array.max())) if not limits.min <= each <= limits.max), None)
    if wrong is None:
        return None
    wide = np.iinfo("int64" if wanted.kind == "i" else "uint64")
    remedy = ""
    if wide.min <= wrong <= wide.max:
        remedy = f" Set jax_enable_x64 (JAX_ENABLE_X64=1) and expect {wide.dtype.name} to have it whole."
    return f"the value {wrong} does not fit {wanted.name}, which holds {limits.min} to {limits.max}.{remedy}"


def _wrong_leaf(
    arrays: Sequence[np.ndarray], converted: Sequence[Any], callback: HostCallback, avals: Sequence[Any]
) -> str:
    index = next(i for i, array in enumerate(converted) if array is None)
    array, aval = arrays[index], avals[index]
    wrong = different(index, aval, array.shape, str(array.dtype), out_of_range(array, aval)) or ""
    return f"{wrong.removesuffix('.')}. {callback.name} should have returned {show(callback, avals)}"


def different(index: int, expected: Any, shape: tuple[int, ...], dtype: str, why: str | None = None) -> str | None:
    """Describe how a returned array differs from the expected aval in shape or dtype; None if it does not."""
    if shape != tuple(expected.shape):
        return f"Incorrect output shape for return value #{index}: Expected: {tuple(expected.shape)}, Actual: {shape}"
    if dtype != np.dtype(expected.dtype).name:
        wrong = f"Incorrect output dtype for return value #{index}: Expected: {expected.dtype}, Actual: {dtype}"
        return f"{wrong}: {why}" if why else wrong
    return None


def to_array(leaf: Any, name: str) -> np.ndarray:
    """Convert a leaf that the callback `name` returned into an array that a device can hold."""
    if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
        raise _unfit(name, "returned a masked array: fill it, JAX has no masks")
    if isinstance(leaf, jax.core.Tracer):
        did = f"returned a tracer, {abstract(leaf)}, which has no value outside of the function that JAX was tracing"
        raise _unfit(name, did)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype == object and isinstance(leaf, int):
        raise _unfit(name, f"returned the integer {shown(leaf)}, which fits no type of a device")
    if array.dtype.kind in "OSUMmV" and array.dtype.isbuiltin != 2:
        seen = f"an array of dtype {array.dtype}" if hasattr(leaf, "dtype") else f"{shown(leaf)} of {type(leaf)}"
        raise _unfit(name, f"returned {seen}, which no device can hold")
    return array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array


def _unfit(name: str, did: str) -> TypeError:
    return mismatched(f"Callback func {name} {did}", did)


def canonical(array: np.ndarray, aval: Any) -> np.ndarray | None:
    """Return `array` in the dtype of `aval`, or None if it does not match."""
    if array.shape != tuple(aval.shape):
        return None
    if array.dtype == aval.dtype:
        return array
    # With x64 off, 64-bit types of Python and NumPy become 32-bit types, as everywhere in JAX.
    if jax.dtypes.canonicalize_dtype(array.dtype) != aval.dtype:
        return None
    narrowed = array.astype(aval.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(narrowed, array):
        # Integer overflow would give a wrong number silently.
        return None
    return narrowed
