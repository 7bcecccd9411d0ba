"""Make `jax.Array`s of the NumPy arrays of a callback, where `jax.device_put` costs more than the callback itself."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from .registry import Cost, called_with, private

_PUT = private(
    "jax._src.lib:xla_client.batched_device_put",
    "Makes the jax.Arrays of a callback that asks for them.",
    "jax.device_put makes them, and takes several times as long.",
    ("D3",),
    Cost.COMFORT,
    called_with(4),
)


def to_jax_array(array: np.ndarray, device: jax.Device) -> Any:
    """Return a `jax.Array` of the same type on a CPU device, or the array itself if JAX has none of its type.

    An array of 64 bits keeps them, also in a thread where x64 is off.

    The result may share the memory of `array`: nobody may change that any more.
    """
    if not is_of_jax(array.dtype):
        # A static argument of a debug callback, which hostcb passes unchanged.
        return array
    if _PUT.lost or not _keeps_type(array.dtype):
        return _put(array, device)
    aval = jax.core.ShapedArray(array.shape, array.dtype)
    try:
        made: jax.Array = _PUT.value(aval, _sharding(device), [array], [device])
    except jax.errors.JaxRuntimeError:
        # A transfer guard of the program, which allows what `jax.device_put` does.
        return _put(array, device)
    return made


def _put(array: np.ndarray, device: jax.Device) -> Any:
    # Also where x64 is on for the thread that traced, and off for this one.
    with jax.enable_x64(True):
        return jax.device_put(array, device)


def is_of_jax(dtype: np.dtype) -> bool:
    """Whether JAX has arrays of this dtype: none of texts, objects and dates."""
    return dtype in (np.bool_, jax.dtypes.float0) or jax.dtypes.issubdtype(dtype, np.number)


def _keeps_type(dtype: np.dtype) -> bool:
    """Whether a JAX array has this dtype by itself: no float0, and no 64 bits in a thread where x64 is off."""
    return dtype.names is None and jax.dtypes.canonicalize_dtype(dtype) == dtype


@functools.cache
def _sharding(device: jax.Device) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device)
