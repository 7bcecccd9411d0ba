"""Advice for a function that was written for other arguments than it got (H32): `jax.Array`s, or no transforms."""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
import numpy as np

from .kinds import Kind

_PACKAGE = str(Path(__file__).parents[1])

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
    """Add a note to an error that other arguments would not have raised."""
    # The attributes of a class of the user's may be of any type, and reading them may raise any exception.
    with contextlib.suppress(Exception):
        note = _of_arguments(kind, failure) if isinstance(failure, TypeError) else _of_attributes(kind, failure)
        # A function may raise the same exception again and again.
        if note is not None and note not in getattr(failure, "__notes__", ()):
            failure.add_note(note)


def _of_arguments(kind: Kind, failure: TypeError) -> str | None:
    """Return the note for a `tap_func` that does not take what it is called with, so that no line of it ran."""
    if kind.name != "id_tap" or not _raised_by_the_call(failure):
        return None
    return "id_tap calls tap_func(arg, transforms), and tap_func(arg, transforms, device=…) if tap_with_device=True."


def _raised_by_the_call(failure: BaseException) -> bool:
    last = failure.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename.startswith(_PACKAGE)


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


def _is_of_arrays(name: str | None) -> bool:
    """Return whether a `jax.Array` has an attribute that a NumPy array does not have."""
    return name is not None and not hasattr(np.ndarray, name) and (name in _OF_ARRAYS or hasattr(jax.Array, name))
