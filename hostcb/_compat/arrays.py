"""Make `jax.Array`s of the NumPy arrays of a callback, where JAX's public functions cost more than the callback itself.

They also read large arrays later: with JAX 0.10.2, `jnp.array(x)` of a megabyte may return before it has copied `x`,
and the user's function changes its buffer as soon as it is called again.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from .registry import Cost, called_with, first_lost, private

_PUT = private(
    "jax._src.lib:xla_client.batched_device_put",
    "Makes the jax.Arrays of a callback that asks for them, and those of results outside jit.",
    "jax.device_put makes them, and takes several times as long.",
    ("D3",),
    Cost.COMFORT,
    called_with(4, "committed", "host_buffer_semantics"),
)
_SEMANTICS = private(
    "jax._src.lib:xla_client.HostBufferSemantics",
    "Says that the memory of such a result is copied at once.",
    _PUT.without,
    ("D3",),
    Cost.COMFORT,
    attributes=("IMMUTABLE_ONLY_DURING_CALL",),
)
_cannot_copy = first_lost(_PUT, _SEMANTICS) is not None


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


def copied_to_device(array: np.ndarray, device: jax.Device | None) -> Any:
    """Return a `jax.Array` with the values of `array`, which may change afterwards.

    Without a device it is on the default device, and not committed to it.
    """
    default = jax.config.jax_default_device
    place = device or (jax.local_devices()[0] if default is None else default)
    if _cannot_copy or not _keeps_type(array.dtype) or not isinstance(place, jax.Device):
        # JAX may share the memory of a NumPy array.
        return jax.device_put(np.array(array), device)
    try:
        made: jax.Array = _PUT.value(
            jax.core.ShapedArray(array.shape, array.dtype),
            _sharding(place),
            [array],
            [place],
            committed=device is not None,
            host_buffer_semantics=_SEMANTICS.value.IMMUTABLE_ONLY_DURING_CALL,
        )
    except jax.errors.JaxRuntimeError:
        # A transfer guard of the program, which allows what `jax.device_put` does.
        return jax.device_put(np.array(array), device)
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
