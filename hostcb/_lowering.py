"""From an equation to an operation: where it runs, in which types values travel, and by which transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax, _transports
from ._callback import HostCallback, Transforms
from ._executions import Program
from ._handlers import Host
from ._transports import Emitted, Site
from ._wire import decoder, encoder, wire_of

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

    spread = _is_spread(context.module_context.axis_context)
    wires_in = [wire_of(aval) for aval in context.avals_in]
    wires_out = [wire_of(aval, as_bits=spread) for aval in result_avals]
    site = Site(
        context=context,
        host=Host(callback, transforms, result_avals, program),
        token=context.tokens_in.get(effect),
        operands=[wire.pack(operand) for wire, operand in zip(wires_in, operands, strict=True)],
        operand_avals=[wire.carried for wire in wires_in],
        result_avals=[wire.carried for wire in wires_out],
        decode=decoder(wires_in),
        encode=encoder(wires_out),
    )
    emitted = _emit(site, platforms[0], device_index)
    # Updated rather than replaced: the program may have other ordered effects, such as JAX's ordered callbacks.
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({effect: emitted.token})))
    if callback.kind.identity:
        return operands
    return [wire.unpack(result) for wire, result in zip(wires_out, emitted.results, strict=True)]


def _is_spread(axis_context: Any) -> bool:
    """Whether the compiler spreads the program over devices (jit over a mesh)."""
    return not isinstance(axis_context, mlir.SPMDAxisContext) and getattr(axis_context, "num_devices", 1) > 1


def _emit(site: Site, platform: str, device_index: int) -> Emitted:
    axis_context = site.context.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return _emit_per_device(site, platform, axis_context, device_index)
    count = getattr(axis_context, "num_devices", 1)
    program = site.host.program
    if device_index >= count:
        raise _index_error(site.host.callback, device_index, count)
    if count == 1:
        if platform == "cpu":
            return _transports.views(site, _cpu_devices, None)
        return _emit_arrays(site, platform, lambda _: program.device_at(0), None, None)
    if platform == "cpu" or platform in GPU_PLATFORMS:
        kind = "cpu" if platform == "cpu" else "gpu"
        targets = (f"xla_ffi_python_{kind}_callback", f"xla_ffi_partitioned_python_{kind}_callback")
        return _transports.one_of_many(site, targets, device_index)
    sharding = _jax.one_device_sharding(device_index, len(site.result_avals))
    return _transports.send_and_receive(site, lambda _: program.device_at(device_index), None, sharding)


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
    # A position in the mesh is not a device's number, so the devices come from the execution itself.
    position = hlo.PartitionIdOp().result
    program = site.host.program
    return _emit_arrays(site, platform, lambda extra: program.device_at(int(extra[0])), position, sharding)


def _emit_arrays(site: Site, platform: str, locate: Callable[..., Any], position: Any, sharding: Any) -> Emitted:
    if platform in GPU_PLATFORMS:
        return _transports.arrays(site, "xla_ffi_python_gpu_callback", locate, position, sharding)
    # One device's own program needs no sharding, and JAX's emitter would give all results the same.
    return _transports.send_and_receive(site, locate, position, None)


class _CpuDevices(dict[int, Any]):
    """The device object for each number that the runtime gives."""

    def __missing__(self, ordinal: int) -> Any:
        self.update({device.local_hardware_id: device for device in jax.local_devices(backend="cpu")})
        return self.get(ordinal)


_cpu_devices = _CpuDevices()


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
