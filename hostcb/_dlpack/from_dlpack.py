"""NumPy arrays over DLPack memory, also for types that NumPy's DLPack does not know: bfloat16, float8.

These types come from `ml_dtypes`. NumPy's DLPack knows integers of the same size, and an integer array can be viewed as
any type. So this module relabels the capsule as integers before NumPy reads it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax.numpy as jnp
import numpy as np

from_dlpack = np.from_dlpack

# The offset of the tensor in each form of capsule. A versioned one begins with the version, two pointers and the flags.
_TENSOR_AT = {b"dltensor_versioned": 32, b"dltensor": 0}
# The offset of the type in a tensor. Address, device (8 bytes each) and number of dimensions (4 bytes) precede it.
_TYPE_AT = 20


class _Type(ctypes.Structure):
    """DLPack's `DLDataType`."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


_UNSIGNED = 1
# DLPack's codes for the types of `ml_dtypes`.
_DTYPES = {
    4: jnp.bfloat16,
    7: jnp.float8_e3m4,
    8: jnp.float8_e4m3,
    9: jnp.float8_e4m3b11fnuz,
    10: jnp.float8_e4m3fn,
    11: jnp.float8_e4m3fnuz,
    12: jnp.float8_e5m2,
    13: jnp.float8_e5m2fnuz,
    14: jnp.float8_e8m0fnu,
}

_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def view(source: Any) -> np.ndarray:
    """Return the array over the memory of `source`, of its own type; it is writable if `source` is.

    Raises:
        BufferError, RuntimeError: `source` is not on a CPU, or has a type that neither NumPy nor `ml_dtypes` knows.
    """
    try:
        return from_dlpack(source)
    except (BufferError, RuntimeError):
        as_integers = _AsIntegers(source)
        array = from_dlpack(as_integers)
        return array if as_integers.dtype is None else array.view(as_integers.dtype)


class _AsIntegers:
    """A DLPack object that labels a type of `ml_dtypes` as integers of the same size."""

    def __init__(self, source: Any):
        self._source = source
        self.dtype: Any = None

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._source.__dlpack_device__()
        return device

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._source.__dlpack__(**options)
        for name, start in _TENSOR_AT.items():
            if _is_capsule(capsule, name):
                stated = _Type.from_address(_pointer_of(capsule, name) + start + _TYPE_AT)
                dtype = _DTYPES.get(stated.code)
                if dtype is not None and stated.bits == 8 * np.dtype(dtype).itemsize and stated.lanes == 1:
                    self.dtype, stated.code = dtype, _UNSIGNED
        return capsule
