"""From an equation to an operation: where it runs, in which types values travel, and by which transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from . import _jax, _transports, _views
from ._callback import HostCallback, Transforms
from ._crossing import Crossing
from ._custom_calls import module_of
from ._effects import ordered
from ._executions import Program
from ._handlers import Host
from ._transports import Emitted, Site
from ._wire import Wire, wire_of

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
    context: Any,
    *operands: Any,
    callback: HostCallback,
    transforms: Transforms,
    result_avals: Sequence[Any],
    device_index: Any,
    **others: Any,
) -> Sequence[Any]:
    """The lowering rule of the primitive, on every platform."""
    platforms = context.module_context.platforms
    if len(platforms) > 1:
        raise NotImplementedError(
            f"{callback} was lowered for several platforms at once ({', '.join(platforms)}): each runs host callbacks "
            "in its own way, so lower for one at a time."
        )
    kind = callback.kind
    axis_context = context.module_context.axis_context
    if kind.visible and not kind.ordered and _automatic_axes(axis_context):
        params = {"callback": callback, "transforms": transforms, "result_avals": result_avals, **others}
        return _lower_on_first(context, operands, {**params, "device_index": device_index})
    _refuse_combinator(callback)
    program = program_of(context)
    program.callbacks.append(str(callback))
    program.effectful = program.effectful or not kind.pure

    crossings = module_of(context.module_context).crossings
    # Equal functions need not do the same, for all that JAX's caches take them for one: 2 is 2.0, and True is 1.
    key = (id(callback.function), callback, transforms, tuple(context.avals_in), result_avals, device_index)
    crossing = crossings.get(key)
    if crossing is None:
        crossing = crossings[key] = _crossing(context, callback, transforms, result_avals, program)
    site = Site(
        context=context,
        crossing=crossing,
        token=context.tokens_in.get(ordered) if kind.ordered else None,
        operands=crossing.pack(operands),
    )
    emitted = _emit(site, platforms[0], device_index)
    if kind.ordered:
        # Updated rather than replaced: the program may have other ordered effects, such as JAX's ordered callbacks.
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({ordered: emitted.token})))
    if kind.identity:
        return operands
    return crossing.unpack(emitted.results)


def _crossing(
    context: Any, callback: HostCallback, transforms: Transforms, result_avals: Sequence[Any], program: Program
) -> Crossing:
    spread = _is_spread(context.module_context.axis_context)
    if callback.kind.in_place:
        # In its own memory a value has its own type.
        wires_in, wires_out = [Wire(aval) for aval in context.avals_in], [Wire(aval) for aval in result_avals]
    else:
        wires_in = [wire_of(aval) for aval in context.avals_in]
        wires_out = [wire_of(aval, as_bits=spread) for aval in result_avals]
    return Crossing(Host(callback, transforms, context.avals_in, result_avals, program), wires_in, wires_out)


# Operations whose function the compiler evaluates as it likes; a call in it makes the CPU compiler abort.
COMBINATORS = ("reduce", "reduce_window", "scatter", "select_and_scatter", "sort", "all_reduce", "reduce_scatter")


def _refuse_combinator(callback: HostCallback) -> None:
    block = mlir.ir.InsertionPoint.current.block
    name = block.owner.operation.name.removeprefix("stablehlo.")
    if name in COMBINATORS:
        raise NotImplementedError(
            f"{callback} was used in the function of a {name}, which the compiler applies in parts and in an order of "
            "its own: it cannot call back there. Use jax.lax.scan or jax.lax.associative_scan in place of it."
        )


def _automatic_axes(axis_context: Any) -> list[Any]:
    """The axes that a shard_map leaves to the compiler."""
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        return []
    return [name for name in axis_context.mesh.axis_names if name not in axis_context.manual_axes]


def _lower_on_first(context: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """In a shard_map that leaves some axes to the compiler, call on the first device of those axes (X4).

    For callbacks without result or order only: others would need what they return, or their token, on all devices.
    """
    axes = tuple(_automatic_axes(context.module_context.axis_context))
    primitive = context.primitive

    def on_first(*values: Any) -> list[Any]:
        def each() -> list[Any]:
            first = jax.lax.axis_index(axes) == 0
            return list(jax.lax.cond(first, lambda: primitive.bind(*values, **params), lambda: []))

        return list(jax.shard_map(each, in_specs=(), out_specs=[])())

    return list(mlir.lower_fun(on_first, multiple_results=True)(context, *operands))


def _is_spread(axis_context: Any) -> bool:
    """Whether the compiler spreads the program over devices (jit over a mesh)."""
    return not isinstance(axis_context, mlir.SPMDAxisContext) and getattr(axis_context, "num_devices", 1) > 1


def _emit(site: Site, platform: str, device_index: Any) -> Emitted:
    axis_context = site.context.module_context.axis_context
    callback = site.crossing.host.callback
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return _emit_per_device(site, platform, axis_context, device_index)
    count = getattr(axis_context, "num_devices", 1)
    index = _index(callback, device_index, axis_context, count)
    if callback.kind.in_place:
        return _emit_in_place(site, platform, None, count)
    program = site.crossing.host.program
    if count == 1:
        if platform == "cpu":
            return _views.views(site, _cpu_devices, None)
        return _emit_arrays(site, platform, lambda _: program.device_at(0), None, None)
    if platform == "cpu" or platform in GPU_PLATFORMS:
        kind = "cpu" if platform == "cpu" else "gpu"
        targets = (f"xla_ffi_python_{kind}_callback", f"xla_ffi_partitioned_python_{kind}_callback")
        if callback.partitioned:
            return _transports.parts(site, targets[1])
        return _transports.one_of_many(site, targets, index)
    if callback.partitioned:
        raise NotImplementedError(f"{callback}: partitioned=True is not supported on {platform}; use shard_map.")
    sharding = _jax.one_device_sharding(index, len(site.crossing.result_avals))
    return _transports.send_and_receive(site, lambda _: program.device_at(index), None, sharding)


def _index(callback: HostCallback, wanted: Any, axis_context: Any, count: int) -> int:
    """The place among the program's devices of the one that calls: given as such, or as a device."""
    if isinstance(wanted, int):
        if wanted >= count:
            raise out_of_range(callback, wanted, count)
        return wanted
    devices = tuple(axis_context.device_assignment)
    if wanted not in devices:
        raise outside(callback, wanted, devices)
    return devices.index(wanted)


def _emit_per_device(site: Site, platform: str, axis_context: Any, device_index: Any) -> Emitted:
    """Under pmap and shard_map every device calls with its own part (H9)."""
    mesh = axis_context.mesh
    callback = site.crossing.host.callback
    if axis_context.manual_axes != frozenset(mesh.axis_names):
        raise partial_automatic(callback, axis_context.manual_axes, mesh.axis_names)
    if not isinstance(device_index, int):
        raise placed_per_device(callback)
    if device_index >= mesh.size:
        raise out_of_range(callback, device_index, mesh.size)
    ranks = [aval.ndim for aval in site.crossing.result_avals]
    sharding = _jax.whole_sharding(ranks if site.token is None else [0, *ranks], manual=True)
    if callback.kind.in_place:
        return _emit_in_place(site, platform, sharding, 1)
    if platform == "cpu":
        return _views.views(site, _cpu_devices, sharding)
    # A position in the mesh is not a device's number, so the devices come from the execution itself.
    position = hlo.PartitionIdOp().result
    program = site.crossing.host.program
    return _emit_arrays(site, platform, lambda extra: program.device_at(int(extra[0])), position, sharding)


def _emit_in_place(site: Site, platform: str, sharding: Any, count: int) -> Emitted:
    """Functions that write into device memory have a target of their own (B5)."""
    callback = site.crossing.host.callback
    if platform == "cpu":
        target = "xla_buffer_python_cpu_callback"
    elif platform in GPU_PLATFORMS:
        # The second is recorded into a command buffer once, and the recording is run instead of the function.
        suffix = "_cmd_buffer" if callback.command_buffer else ""
        target = f"xla_buffer_python_gpu_callback{suffix}"
    else:
        raise ValueError(
            f"`{callback.kind.name}` not supported on {platform} backend: {callback.name} would be given device memory "
            "as it is, which only CPU, CUDA, ROCm and oneAPI offer. Use pure_callback or io_callback."
        )
    if count > 1 and callback.kind.once:
        raise NotImplementedError(
            f"{callback} has side effects and was used under jit over {count} devices, where the compiler cannot give "
            "it to one of them. Use shard_map, in which each device calls with its part, or drop has_side_effect."
        )
    return _views.in_place(site, target, sharding, _cpu_devices if platform == "cpu" else {})


def _emit_arrays(site: Site, platform: str, locate: Callable[..., Any], position: Any, sharding: Any) -> Emitted:
    if platform in GPU_PLATFORMS:
        return _transports.arrays(site, "xla_ffi_python_gpu_callback", locate, position, sharding)
    # One device's own program needs no sharding, and JAX's emitter would give all results the same.
    return _transports.send_and_receive(site, locate, position, None)


class _CpuDevices(dict[int, Any]):
    """The device object for each number that the runtime gives.

    A number that belongs to no device is the mark of a bug in JAX: while an array that `np.asarray` made of a runtime's
    buffer lives, nanobind takes the buffer of a later call that happens to be made at the same place of the stack for
    the old one, and what is read from it is garbage.
    """

    def __missing__(self, ordinal: int) -> Any:
        self.update({device.local_hardware_id: device for device in jax.local_devices(backend="cpu")})
        if ordinal not in self:
            raise RuntimeError(
                "the runtime gave this callback a buffer that is not its own, because the function of some "
                "buffer_callback kept an array that np.asarray(buffer) gave it, or failed and was kept with its "
                "arrays, and JAX takes later buffers for that one. Let functions of buffer_callback copy what they "
                "keep, with np.array(buffer), or take np.from_dlpack(buffer)."
            )
        return self[ordinal]


_cpu_devices = _CpuDevices()


# Errors ----------------------------------------------------------------------------------------------------------


def out_of_range(callback: HostCallback, device_index: int, count: int) -> ValueError:
    """The refusal of a device_index that the computation has no device for."""
    return ValueError(
        f"device_index={device_index} of {callback} is out of range: the computation runs on {count} "
        f"device{'s' if count > 1 else ''}, so it must be {'0' if count == 1 else f'from 0 to {count - 1}'}."
    )


def outside(callback: HostCallback, device: Any, devices: Sequence[Any]) -> ValueError:
    """The refusal of a sharding whose device takes no part in the computation."""
    return ValueError(
        f"{callback}: the sharding names the device {device} that is not in the device assignment of the computation, "
        f"{', '.join(map(str, devices))}. Name one of these, or run the computation where the callback should be."
    )


def placed_per_device(callback: HostCallback) -> NotImplementedError:
    """The refusal of a sharding where every device calls for itself."""
    return NotImplementedError(
        f"{callback}: callbacks do not support specifying sharding inside spmd computations (pmap, shard_map), where "
        "every device calls with its own part. Drop sharding=, or call back outside."
    )


def partial_automatic(callback: HostCallback, manual: Any, names: Any) -> NotImplementedError:
    """The refusal of a shard_map that leaves some axes to the compiler."""
    automatic = sorted(str(name) for name in names if name not in manual)
    return NotImplementedError(
        f"{callback} was used in a shard_map that is manual over {sorted(map(str, manual))} only, but host callbacks "
        "are supported when all mesh axes are partitioned manually, not with partially automatic sharding. Make "
        f"{automatic} manual too (drop axis_names=), or call back outside the shard_map."
    )
