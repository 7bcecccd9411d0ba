"""From an equation to an operation: where it runs, in which types values travel, and by which transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax, _transports
from ._callback import HostCallback, Transforms
from ._executions import Program
from ._handlers import Host, restorer
from ._transports import Emitted, Site

GPU_PLATFORMS = ("cuda", "rocm", "oneapi")


def program_of(context: Any) -> Program:
    """The account's entry for the module being lowered; the executable keeps it."""
    module_context = context.module_context
    for kept in module_context.keepalives:
        if isinstance(kept, Program):
            return kept
    program = Program()
    module_context.add_keepalive(program)
    return program


def lower(
    effect: Any,
    context: Any,
    *operands: Any,
    callback: HostCallback,
    transforms: Transforms,
    result_avals: Sequence[Any],
    device_index: int,
    **_: Any,
) -> Sequence[Any]:
    """The lowering rule of the primitive, on every platform."""
    platforms = context.module_context.platforms
    if len(platforms) > 1:
        raise NotImplementedError(
            f"{callback} was lowered for several platforms at once ({', '.join(platforms)}): each runs host callbacks "
            "in its own way, so lower for one at a time."
        )
    program = program_of(context)
    program.callbacks.append(str(callback))

    travelling = [_travelling(aval) for aval in context.avals_in]
    result_travelling = [_travelling(aval) for aval in result_avals]
    dtypes = [np.dtype(aval.dtype) for aval in context.avals_in]
    site = Site(
        context=context,
        host=Host(callback, transforms, dtypes, result_avals, program),
        token=context.tokens_in.get(effect),
        operands=[_convert(x, a, t) for x, a, t in zip(operands, context.avals_in, travelling, strict=True)],
        operand_avals=travelling,
        result_avals=result_travelling,
        restore=restorer([aval.dtype for aval in travelling], dtypes),
        encode=_encoder(result_avals, result_travelling),
    )
    emitted = _emit(site, platforms[0], device_index)
    context.set_tokens_out(mlir.TokenSet({effect: emitted.token}))
    if callback.kind.identity:
        return operands
    return [_convert(x, t, a) for x, a, t in zip(emitted.results, result_travelling, result_avals, strict=True)]


def _emit(site: Site, platform: str, device_index: int) -> Emitted:
    axis_context = site.context.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return _emit_per_device(site, platform, axis_context, device_index)
    assignment = getattr(axis_context, "device_assignment", None)
    count = getattr(axis_context, "num_devices", 1)
    if device_index >= count:
        raise _index_error(site.host.callback, device_index, count)
    if count == 1:
        if platform == "cpu":
            return _transports.views(site, _cpu_devices, None)
        device = assignment[0] if assignment else None
        return _emit_arrays(site, platform, lambda _: device or site.host.program.device_at(0), None, None)
    if assignment is None:
        raise NotImplementedError(
            f"{site.host.callback} was lowered for {count} devices that are not known (an abstract mesh): host "
            "callbacks need the devices, lower with a concrete mesh."
        )
    device = assignment[device_index]
    if platform == "cpu":
        targets = ("xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback")
        return _transports.one_of_many(site, targets, device, device_index)
    if platform in GPU_PLATFORMS:
        targets = ("xla_ffi_python_gpu_callback", "xla_ffi_partitioned_python_gpu_callback")
        return _transports.one_of_many(site, targets, device, device_index)
    results = len(site.result_avals)
    return _transports.send_and_receive(site, lambda _: device, _jax.one_device_sharding(device_index, results), None)


def _emit_per_device(site: Site, platform: str, axis_context: Any, device_index: int) -> Emitted:
    """Under pmap and shard_map every device calls with its own part (H9)."""
    mesh = axis_context.mesh
    if axis_context.manual_axes != frozenset(mesh.axis_names):
        raise partial_automatic(site.host.callback, axis_context.manual_axes, mesh.axis_names)
    if device_index >= mesh.size:
        raise _index_error(site.host.callback, device_index, mesh.size)
    sharding = _jax.whole_sharding([0, *(aval.ndim for aval in site.result_avals)], manual=True)
    if platform == "cpu":
        return _transports.views(site, _cpu_devices, sharding)
    # The position in the mesh is not the device's number, so the devices come from the execution itself.
    position = hlo.PartitionIdOp().result
    program = site.host.program
    return _emit_arrays(site, platform, lambda extra: program.device_at(int(extra[0])), sharding, position)


def _emit_arrays(site: Site, platform: str, locate: Callable[..., Any], sharding: Any, position: Any) -> Emitted:
    if platform in GPU_PLATFORMS:
        return _transports.arrays(site, "xla_ffi_python_gpu_callback", locate, sharding, position)
    return _transports.send_and_receive(site, locate, sharding, position)


class _CpuDevices(dict[int, Any]):
    """The device object for each number that the runtime gives."""

    def __missing__(self, ordinal: int) -> Any:
        self.update({device.local_hardware_id: device for device in jax.local_devices(backend="cpu")})
        return self.get(ordinal)


_cpu_devices = _CpuDevices()


# What travels ----------------------------------------------------------------------------------------------------


def _travelling(aval: Any) -> Any:
    """The type in which a value crosses: types of less than a byte are packed on the device and not in NumPy."""
    dtype = np.dtype(aval.dtype)
    if dtype == np.bool_ or jax.dtypes.itemsize_bits(dtype) >= 8:
        return jax.core.ShapedArray(aval.shape, dtype)
    if jax.numpy.issubdtype(dtype, np.unsignedinteger):
        return jax.core.ShapedArray(aval.shape, np.uint8)
    if jax.numpy.issubdtype(dtype, np.signedinteger):
        return jax.core.ShapedArray(aval.shape, np.int8)
    return jax.core.ShapedArray(aval.shape, np.float16)


def _convert(value: Any, given: Any, wanted: Any) -> Any:
    if np.dtype(given.dtype) == np.dtype(wanted.dtype):
        return value
    ir_type = mlir.ir.RankedTensorType.get(wanted.shape, mlir.dtype_to_ir_type(np.dtype(wanted.dtype)))
    return hlo.ConvertOp(ir_type, value).result


def _encoder(logical: Sequence[Any], travelling: Sequence[Any]) -> Callable[..., Sequence[np.ndarray]]:
    if all(np.dtype(a.dtype) == np.dtype(t.dtype) for a, t in zip(logical, travelling, strict=True)):
        return lambda arrays: arrays

    def encode(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [array.astype(aval.dtype, copy=False) for array, aval in zip(arrays, travelling, strict=True)]

    return encode


# Errors ----------------------------------------------------------------------------------------------------------


def _index_error(callback: HostCallback, device_index: int, count: int) -> ValueError:
    return ValueError(
        f"device_index={device_index} of {callback} is out of range: the computation runs on {count} "
        f"device{'s' if count > 1 else ''}, so it must be {'0' if count == 1 else f'from 0 to {count - 1}'}."
    )


def partial_automatic(callback: HostCallback, manual: Any, names: Any) -> NotImplementedError:
    """The refusal of a shard_map that leaves some axes to the compiler."""
    automatic = sorted(str(name) for name in names if name not in manual)
    return NotImplementedError(
        f"{callback} was used in a shard_map that is manual over {sorted(map(str, manual))} only: host callbacks do "
        f"not support partially automatic sharding. Make {automatic} manual too (drop axis_names=), or call back "
        "outside the shard_map."
    )
