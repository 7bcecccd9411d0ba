"""The runtime's handlers of Python callbacks, to which the native extension passes the taps that it does not take."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from .registry import Cost, called_with, private

_TARGETS = private(
    "jax._src.lib:xla_client.custom_call_targets",
    "Tells the runtime's handler of Python callbacks to the native extension.",
    "Taps are queued in Python, and wait for the interpreter lock.",
    ("D3",),
    Cost.COMFORT,
    called_with(1),
)

# JAX's own packages for CUDA, which register these handlers with the runtime.
_CUDA_PLUGINS = ("jax_cuda13_plugin.cuda_plugin_extension", "jax_cuda12_plugin.cuda_plugin_extension")

# Prototypes of our own: the attributes of `ctypes.pythonapi` belong to all libraries of the process.
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def python_handler(target: str) -> int | None:
    """Return the address of the handler of a target on the CPU; None if this JAX does not give it."""
    if _TARGETS.lost:
        return None
    stages = _TARGETS.value("cpu").get(target)
    capsule = stages.get("execute") if isinstance(stages, dict) and set(stages) == {"execute"} else None
    return None if capsule is None else _address(capsule)


def cuda_python_handler() -> int | None:
    """Return the address of the handler of callbacks on buffers on CUDA; None without a plugin that gives it."""
    for plugin in _CUDA_PLUGINS:
        try:
            capsule = importlib.import_module(plugin).ffi_handlers()["xla_buffer_python_gpu_callback"]
        except (ImportError, AttributeError, LookupError, TypeError):
            continue
        return _address(capsule)
    return None


def _address(capsule: Any) -> int | None:
    try:
        address: int | None = _pointer_of(capsule, _name_of(capsule))
    except (TypeError, ValueError):
        return None
    return address
