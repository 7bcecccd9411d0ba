"""The compared callbacks, ours and JAX's own, each as a function from an array to an array of the same type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import hostcb

Subject = Callable[[Any], Any]


def identity(value: Any) -> Any:
    return value


def nothing(*_: Any) -> None:
    return None


def _copy(_: Any, out: Any, value: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(value))


def _copy_dlpack(out: Any, value: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(value))


def shape_of(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _passing(callback: Callable[[Any], None]) -> Subject:
    def subject(value: Any) -> Any:
        callback(value)
        return value

    return subject


SUBJECTS: dict[str, Subject] = {
    "call": lambda x: hostcb.call(identity, x, result_shape=shape_of(x)),
    "id_tap": lambda x: hostcb.id_tap(nothing, x),
    "pure_callback": lambda x: hostcb.pure_callback(identity, shape_of(x), x),
    "io_callback": lambda x: hostcb.io_callback(identity, shape_of(x), x),
    "io_callback(ordered=True)": lambda x: hostcb.io_callback(identity, shape_of(x), x, ordered=True),
    "debug.callback": _passing(lambda x: hostcb.debug.callback(nothing, x)),
    "buffer_callback": lambda x: hostcb.buffer_callback(_copy, shape_of(x))(x),
    "dlpack_callback": lambda x: hostcb.dlpack_callback(_copy_dlpack, shape_of(x), in_place=True)(x),
    "jax pure_callback": lambda x: jax.pure_callback(identity, shape_of(x), x),
    "jax io_callback": lambda x: io_callback(identity, shape_of(x), x),
    "jax io_callback(ordered=True)": lambda x: io_callback(identity, shape_of(x), x, ordered=True),
    "jax debug.callback": _passing(lambda x: jax.debug.callback(nothing, x)),
    "jax buffer_callback": lambda x: buffer_callback(_copy, shape_of(x))(x),
}


def barrier() -> None:
    """Wait for the callbacks of every subject."""
    hostcb.barrier_wait()
    jax.effects_barrier()
