"""Advice for usual slips, the last line of an error (H32): arguments that a function does not take, another result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._spec.callback import LEAF, HostCallback
from .._spec.kinds import Kind
from .._spec.naming import shown
from .._spec.options import nearest, no_option

# The attribute of an exception that has the advice, which is a note of it, too.
_ADVICE = "_hostcb_advice"

NO_SHAPE = "result_shape describes integers and no shape"

# Attributes of every array that the abstract class `jax.Array` does not define.
_OF_ARRAYS = (
    *("aval", "block_until_ready", "clone", "delete", "devices", "is_deleted", "is_ready"),
    *("on_device_size_in_bytes", "platform", "unsafe_buffer_pointer", "weak_type"),
)


def advise(callback: HostCallback, failure: BaseException) -> None:
    """Add a note to an error that other arguments would not have raised."""
    # The attributes of a class of the user's may be of any type, and reading them may raise any exception.
    with contextlib.suppress(Exception):
        note = _of_attributes(callback.kind, failure) or _of_tracers(failure) or _of_call(callback, failure)
        # A function may raise the same exception again and again.
        if note is not None and note not in getattr(failure, "__notes__", ()):
            failure.add_note(note)
            setattr(failure, _ADVICE, note)


def advice_in(failure: BaseException) -> str | None:
    """Return the advice that an error has; None if there is none."""
    found = vars(failure).get(_ADVICE)
    return None if found is None else str(found)


def _of_attributes(kind: Kind, failure: BaseException) -> str | None:
    """Return the note for an `AttributeError` for an attribute that a `jax.Array` has and a NumPy array does not."""
    if kind.in_place or not isinstance(failure, AttributeError):
        return None
    if not isinstance(failure.obj, np.ndarray | np.generic) or not _is_of_arrays(failure.name):
        return None
    option = " The option hostcb_jax_arrays (HOSTCB_JAX_ARRAYS=1) does so for all."
    return (
        f"hostcb gives callbacks NumPy arrays, and .{failure.name} is of jax.Array: wrap the callback in "
        f"hostcb.jax_arrays(…), which gives it jax.Arrays.{'' if kind.one_argument else option}"
    )


def _of_tracers(failure: BaseException) -> str | None:
    """Return the note for a function that computes with a traced value, such as one of its closure."""
    if not isinstance(failure, jax.errors.UnexpectedTracerError):
        return None
    return "The callback uses a value of a function that JAX was tracing: pass that value to it as an operand."


def _of_call(callback: HostCallback, failure: BaseException) -> str | None:
    """Return the note for a function that does not take what the program passes: an option by mistake, or nothing."""
    if callback.kind.one_argument or not isinstance(failure, TypeError):
        return None
    positional, keywords = callback.argument([None] * callback.operand_count)
    kind, text = callback.kind, str(failure)
    if described := next((name for name in keywords if nearest(name, ("result_shape", "result_shape_dtypes"))), None):
        return f"{kind.name} has no option {shown(described)}: the second argument describes the result."
    for name in keywords:
        # A function in C may take none at all.
        if "keyword argument" in text and (f"'{name}'" in text or "takes no" in text):
            if name == "on_error" and kind.visible:
                return f'on_error goes into the first of two calls: {kind.name}(on_error="log")(function, ...).'
            options = (
                ("sharding", "vmap_method") if kind.pure else ("ordered", "partitioned" if kind.visible else "sharding")
            )
            return str(no_option(kind.name, name, nearest(name, options), f"It passes {name} to the function."))
    if callback.result_tree is not None and not (positional or keywords) and "argument" in str(failure):
        return "The function gets no operands: the argument after it describes the result, and the operands follow."
    return None


def _is_of_arrays(name: str | None) -> bool:
    """Return whether a `jax.Array` has an attribute that a NumPy array does not have."""
    return name is not None and not hasattr(np.ndarray, name) and (name in _OF_ARRAYS or hasattr(jax.Array, name))


def on_result(callback: HostCallback, result: Any, avals: Sequence[Any], devices: int) -> str | None:
    """Return the advice for a function that has returned something else than one array, or than a tuple of integers.

    `devices` is the number of devices that run the program.
    """
    with contextlib.suppress(Exception):
        if result is None:
            none = "result_shape=None" if callback.kind.one_argument else "None"
            return f"Does the function lack a `return`? Where it returns nothing, describe the result by {none}."
        # The result may be any object, and reading its attributes may raise any exception.
        if callback.result_tree == LEAF:
            return _on_one_array(callback.kind, result, avals[0], devices)
        numbers = [0] * len(avals)
        is_flat = callback.result_tree in map(jax.tree_util.tree_structure, (numbers, tuple(numbers)))
        integers = all(aval.shape == () and np.dtype(aval.dtype).kind == "i" for aval in avals)
        # In the other kinds a number describes no result.
        if callback.kind.one_argument and is_flat and integers and len(result.shape) == len(avals):
            array = f"jax.ShapeDtypeStruct({tuple(result.shape)}, {_dtype(result.dtype)})"
            return f"{NO_SHAPE}: for an array use {array}."
    return None


def _on_one_array(kind: Kind, result: Any, aval: Any, devices: int) -> str | None:
    array, dtype = np.asarray(result), np.dtype(aval.dtype)
    part, whole = sorted((array.shape, tuple(aval.shape)), key=math.prod)
    is_part = len(part) == len(whole) and not any(all_of % some for some, all_of in zip(part, whole, strict=True))
    if is_part and part != whole and devices % (math.prod(whole) // math.prod(part)) == 0:
        return f"In shard_map and pmap shapes are those of one device's part: perhaps {part} in place of {whole}."
    if kind.one_argument and aval.shape == array.shape == () and dtype.kind == "i" and array.dtype.kind == "f":
        return "A whole number as result_shape, such as 0, means an integer: for a float write 0.0."
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        return None
    if isinstance(result, np.ndarray | np.generic | jax.Array):
        is_cast = array.dtype.kind != dtype.kind or np.can_cast(array.dtype, dtype)
        is_cast = is_cast and array.shape == aval.shape and array.dtype != dtype
        return f"Return it in the promised dtype: value.astype({_dtype(dtype)})." if is_cast else None
    if array.shape == aval.shape:
        return f"Wrap what the callback returns in an array: np.asarray(value, {_dtype(dtype)})."
    if array.shape == ():
        return f"For an array of equal elements return np.full({aval.shape}, value, {_dtype(dtype)})."
    return None


def _dtype(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return name if name == "bool" else f"{'np' if hasattr(np, name) else 'jnp'}.{name}"
