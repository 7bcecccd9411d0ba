"""What is compared: our callbacks and JAX's own, each as a function from an array to an array of the same type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import hostcb

Subject = Callable[[Any], Any]

# Ours, JAX's, and how much of JAX's time ours may take in a loop.
COMPARISONS = (
    ("call", "jax io_callback(ordered=True)", 0.2),
    ("id_tap", "jax debug.callback", 0.35),
    ("pure_callback", "jax pure_callback", 1.0),
    ("io_callback", "jax io_callback", 1.0),
    ("io_callback(ordered=True)", "jax io_callback(ordered=True)", 1.0),
    ("debug.callback", "jax debug.callback", 1.0),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)


def _identity(value: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    return None


def _copy(_: Any, out: Any, value: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(value))


def _copy_dlpack(out: Any, value: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(value))


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _passing(callback: Callable[[Any], None]) -> Subject:
    def subject(value: Any) -> Any:
        callback(value)
        return value

    return subject


SUBJECTS: dict[str, Subject] = {
    "call": lambda x: hostcb.call(_identity, x, result_shape=_shape(x)),
    "id_tap": lambda x: hostcb.id_tap(_nothing, x),
    "pure_callback": lambda x: hostcb.pure_callback(_identity, _shape(x), x),
    "io_callback": lambda x: hostcb.io_callback(_identity, _shape(x), x),
    "io_callback(ordered=True)": lambda x: hostcb.io_callback(_identity, _shape(x), x, ordered=True),
    "debug.callback": _passing(lambda x: hostcb.debug.callback(_nothing, x)),
    "buffer_callback": lambda x: hostcb.buffer_callback(_copy, _shape(x))(x),
    "dlpack_callback": lambda x: hostcb.dlpack_callback(_copy_dlpack, _shape(x), in_place=True)(x),
    "jax pure_callback": lambda x: jax.pure_callback(_identity, _shape(x), x),
    "jax io_callback": lambda x: io_callback(_identity, _shape(x), x),
    "jax io_callback(ordered=True)": lambda x: io_callback(_identity, _shape(x), x, ordered=True),
    "jax debug.callback": _passing(lambda x: jax.debug.callback(_nothing, x)),
    "jax buffer_callback": lambda x: buffer_callback(_copy, _shape(x))(x),
}


def barrier() -> None:
    """Wait for the callbacks of every subject."""
    hostcb.barrier_wait()
    jax.effects_barrier()
