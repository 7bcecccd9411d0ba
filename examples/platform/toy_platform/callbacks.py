"""What a vendor adds to JAX for callbacks on its platform: a handler in its plugin, and lowerings that call it.

JAX's emitter, `emit_python_callback`, knows a closed list of platforms. hostcb's transport for all other platforms, and
JAX's own callbacks, call the emitter: so one replacement gives the platform both.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jax._src import callback as jax_callback
from jax._src import core, debugging, ffi
from jax._src.interpreters import mlir as private_mlir
from jax.interpreters import mlir

from .building import library
from .names import DEVICES_PLATFORM

TARGET = "xla_ffi_python_cpu_callback"
"""XLA's partitioner accepts side effects under these names alone, so that a vendor has to use one of JAX's."""

_TOKEN = 17
_DTYPES = {
    **{1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64},
    **{6: np.uint8, 7: np.uint16, 8: np.uint32, 9: np.uint64},
    **{10: np.float16, 11: np.float32, 12: np.float64, 15: np.complex64, 18: np.complex128},
    **{16: ml_dtypes.bfloat16, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e4m3fn, 21: ml_dtypes.int4},
}
"""The element types of the FFI, by their numbers; a real platform has more of them."""


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extensions", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dimensions", ctypes.POINTER(ctypes.c_int64)),
    ]


_Buffers = ctypes.POINTER(ctypes.POINTER(_Buffer))
_TO_PYTHON = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, _Buffers, ctypes.c_int64, _Buffers)


@dataclasses.dataclass(frozen=True)
class _Held:
    """A Python function that programs call by its number; a module holds it as long as it can run."""

    function: Callable[..., Sequence[np.ndarray]]


_held: dict[int, _Held] = {}
# For good: an execution may outlive the Python objects of its executable. So this platform leaks its callbacks.
_numbers = itertools.count(1)
_errors = threading.local()


def _memory(buffers: Any, count: int) -> list[tuple[np.dtype, tuple[int, ...], np.ndarray]]:
    """The element type, the shape and the bytes of each buffer, without those of tokens."""
    found = []
    for buffer in (buffers[place].contents for place in range(count)):
        if buffer.type == _TOKEN:
            continue
        dtype = np.dtype(_DTYPES[buffer.type])
        shape = tuple(buffer.dimensions[axis] for axis in range(buffer.rank))
        size = (math.prod(shape) + 1) // 2 if dtype == ml_dtypes.int4 else math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(buffer.data) if size else bytearray()
        found.append((dtype, shape, np.frombuffer(memory, np.uint8)))
    return found


def _read(dtype: np.dtype, shape: tuple[int, ...], memory: np.ndarray) -> np.ndarray:
    """A copy of a buffer. XLA has two elements of four bits in a byte, and NumPy has one."""
    if dtype != ml_dtypes.int4:
        return memory.view(dtype).reshape(shape).copy()
    halves = np.stack([memory & 15, memory >> 4], axis=-1).ravel()
    return halves[: math.prod(shape)].astype(dtype).reshape(shape)


def _write(memory: np.ndarray, array: np.ndarray) -> None:
    flat = np.ascontiguousarray(array).ravel()
    if array.dtype != ml_dtypes.int4:
        memory[...] = flat.view(np.uint8)
        return
    halves = np.zeros(2 * memory.size, np.uint8)
    halves[: flat.size] = flat.astype(np.uint8) & 15
    memory[...] = halves[::2] | halves[1::2] << 4


@_TO_PYTHON
def _called(index: int, operands: int, of_operands: Any, results: int, of_results: Any) -> int | None:
    try:
        found = _held[index].function(*(_read(*buffer) for buffer in _memory(of_operands, operands)))
        for (_, _, memory), result in zip(_memory(of_results, results), found, strict=True):
            _write(memory, result)
    except BaseException:
        # An exception must not reach XLA. The plugin copies the text before this thread can call again.
        _errors.text = ctypes.create_string_buffer(
            f"CpuCallback error calling callback: {traceback.format_exc()}".encode()
        )
        return ctypes.addressof(_errors.text)
    return None


def install() -> None:
    """Let JAX call back on the platform."""
    shim = ctypes.CDLL(str(library()))
    if shim.toy_register(TARGET.encode(), _called):
        raise RuntimeError("the plugin of the toy platform does not take handlers of the FFI")
    for module in (jax_callback, private_mlir, mlir, debugging):
        if hasattr(module, "emit_python_callback"):
            module.emit_python_callback = _emit
    for name in ("debug_callback_p", "debug_print_p"):
        if primitive := getattr(debugging, name, None):
            _lower_everywhere(primitive)


def _lower_everywhere(primitive: Any) -> None:
    """JAX has rules for CPU, GPU and TPU alone. The rule of the CPU calls the emitter, so it is right here as well.

    A rule for one platform needs the name of the registered platform, and rules go by that of the devices: so it is the
    default for all platforms without a rule.
    """
    entry = private_mlir._platform_specific_lowerings["cpu"].get(primitive)
    if entry is not None:
        mlir.register_lowering(primitive, getattr(entry, "rule", entry))


_emit_elsewhere = getattr(jax_callback, "emit_python_callback", None) or private_mlir.emit_python_callback


def _emit(
    context: Any,
    callback: Callable[..., Any],
    token: Any,
    operands: Sequence[Any],
    operand_avals: Sequence[Any],
    result_avals: Sequence[Any],
    *,
    has_side_effect: bool,
    returns_token: bool = True,
    partitioned: bool = False,
    sharding: Any = None,
) -> Any:
    """Emit a call of a Python function, as JAX's function of this name does."""
    if context.module_context.platforms != (DEVICES_PLATFORM,):
        return _emit_elsewhere(
            *(context, callback, token, operands, operand_avals, result_avals),
            **{"has_side_effect": has_side_effect, "returns_token": returns_token},
            **{"partitioned": partitioned, "sharding": sharding},
        )
    if partitioned:
        raise NotImplementedError(f"Partitioned callback not implemented on {DEVICES_PLATFORM} backend.")
    held = _Held(_checked(callback, list(result_avals)))
    number = next(_numbers)
    _held[number] = held
    context.module_context.add_keepalive(held)
    tokens = [] if token is None else [core.abstract_token]
    site = context.replace(avals_in=[*tokens, *operand_avals], avals_out=[*tokens, *result_avals])
    operands = operands if token is None else [token, *operands]
    lower = ffi.build_ffi_lowering_function(TARGET, has_side_effect=has_side_effect)
    op = lower(site, *operands, index=np.uint64(number))
    if sharding is not None:
        if token is not None and hasattr(sharding, "shardings") and result_avals:
            sharding = type(sharding)((sharding.shardings[0], *sharding.shardings))
        private_mlir.set_sharding(context.module_context, op, sharding)
    results = list(op.results)
    if token is not None:
        token, *results = results
    return results, token, held


def _checked(callback: Callable[..., Any], wanted: Sequence[Any]) -> Callable[..., Sequence[np.ndarray]]:
    """The function, with JAX's checks of its results."""

    def checked(*operands: np.ndarray) -> Sequence[np.ndarray]:
        found = callback(*operands)
        if len(found) != len(wanted):
            raise RuntimeError(
                f"Mismatched number of outputs from callback. Expected: {len(wanted)}, Actual: {len(found)}"
            )
        arrays = [np.asarray(one) for one in found]
        for place, (array, aval) in enumerate(zip(arrays, wanted, strict=True)):
            if array.shape != aval.shape:
                raise RuntimeError(
                    f"Incorrect output shape for return value #{place}: Expected: {aval.shape}, Actual: {array.shape}"
                )
            if array.dtype != aval.dtype:
                raise RuntimeError(
                    f"Incorrect output dtype for return value #{place}: Expected: {aval.dtype}, Actual: {array.dtype}"
                )
        return arrays

    return checked
