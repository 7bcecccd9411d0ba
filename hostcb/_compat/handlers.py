"""The runtime's handlers of Python callbacks, to which the library in C passes the taps that it does not take."""

from __future__ import annotations

import ctypes
from typing import Any

from .registry import Cost, called_with, private

_TARGETS = private(
    "jax._src.lib:xla_client.custom_call_targets",
    "Tells the runtime's handler of Python callbacks to the library in C.",
    "Taps are handed over in Python, and wait for the interpreter lock.",
    ("D3",),
    Cost.COMFORT,
    called_with(1),
)


def python_handler(target: str) -> int | None:
    """Return the address of the handler of a target on the CPU; None if this JAX does not tell it."""
    if _TARGETS.lost:
        return None
    stages = _TARGETS.value("cpu").get(target)
    capsule = stages.get("execute") if isinstance(stages, dict) and set(stages) == {"execute"} else None
    return None if capsule is None else _address(capsule)


def _address(capsule: Any) -> int | None:
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address: int | None = pointer_of(capsule, name_of(capsule))
    except (TypeError, ValueError):
        return None
    return address
