"""Advice for a function that was written for the `jax.Array`s of JAX's own callbacks, and got a NumPy array (H32)."""

from __future__ import annotations

import contextlib

import jax
import numpy as np

from .kinds import Kind

# Attributes of every array that the abstract class `jax.Array` does not define.
_OF_ARRAYS = (
    "aval",
    "block_until_ready",
    "clone",
    "delete",
    "devices",
    "is_deleted",
    "is_ready",
    "on_device_size_in_bytes",
    "platform",
    "unsafe_buffer_pointer",
    "weak_type",
)


def advise(kind: Kind, failure: BaseException) -> None:
    """Add a note to an `AttributeError` for an attribute that a `jax.Array` has and a NumPy array does not."""
    # The attributes of a class of the user's may be of any type, and reading them may raise any exception.
    with contextlib.suppress(Exception):
        if kind.in_place or not isinstance(failure, AttributeError):
            return
        if isinstance(failure.obj, np.ndarray | np.generic) and _is_of_arrays(failure.name):
            option = " The option hostcb_jax_arrays (HOSTCB_JAX_ARRAYS=1) does so for all."
            note = (
                f"hostcb gives callbacks NumPy arrays, and .{failure.name} is of jax.Array: wrap the callback in "
                f"hostcb.jax_arrays(…), which gives it jax.Arrays.{'' if kind.one_argument else option}"
            )
            # A function may raise the same exception again and again.
            if note not in getattr(failure, "__notes__", ()):
                failure.add_note(note)


def _is_of_arrays(name: str | None) -> bool:
    """Return whether a `jax.Array` has an attribute that a NumPy array does not have."""
    return name is not None and not hasattr(np.ndarray, name) and (name in _OF_ARRAYS or hasattr(jax.Array, name))
