"""The lowering rule: choose the device that calls, the carried types, and the transport of an equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from .. import _compat
from .._compat import dispatch
from .._compat.extend import hlo
from .._runtime.dispatch.postponed import is_handler
from .._runtime.dispatch.programs import Program
from .._runtime.executions.executions import tracker
from .._runtime.host import Host
from .._spec.callback import HostCallback, Transforms
from .._spec.effects import ordered
from .._spec.placement import partial_automatic, placed_per_device, position_among
from .._threads.foreign import foreign_callbacks_of
from . import transports, views
from .crossing import Crossing
from .custom_calls import module_of
from .transports import Emitted, Equation
from .wire import Wire, wire_of

GPU_PLATFORMS = ("cuda", "rocm", "oneapi")


def program_of(context: Any) -> Program:
    """Return the `Program` of the module that JAX is lowering; the executable keeps it alive."""
    module_context = context.module_context
    for kept in module_context.keepalives:
        if isinstance(kept, Program):
            return kept
    program = Program()
    program.name = _compat.module_name(module_context)
    program.is_tracked = tracker.informed
    program.lowered_for = _devices_of(module_context.axis_context)
    module_context.add_keepalive(program)
    foreign_callbacks_of(module_context).attach_program(program)
    return program


def _devices_of(axis_context: Any) -> tuple[Any, ...] | None:
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        devices = getattr(axis_context, "device_assignment", None)
    else:
        devices = axis_context.mesh.devices.flat if isinstance(axis_context.mesh, jax.sharding.Mesh) else None
    return None if devices is None else tuple(devices)


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
    callback = callback.named_by_call(lambda: _compat.frames_of(context))
    kind = callback.kind
    axis_context = context.module_context.axis_context
    if kind.visible and not kind.ordered and _automatic_axes(axis_context):
        params = {"callback": callback, "transforms": transforms, "result_avals": result_avals, **others}
        return _lower_on_first(context, operands, {**params, "device_index": device_index})
    _refuse_combinator(callback)
    if kind.ordered:
        dispatch.check_order(callback, platforms[0])
    program = program_of(context)
    program.callbacks.append(callback)
    program.effectful = program.effectful or not kind.pure
    program.only_taps = program.only_taps and kind.identity
    program.keeps_order = program.keeps_order or kind.ordered

    crossings = module_of(context.module_context).crossings
    # JAX's caches treat equal functions as one, but they need not do the same: 2 == 2.0, and True == 1.
    key = (
        *(id(callback.function), callback, callback.called_at),
        *(transforms, tuple(context.avals_in), result_avals, device_index),
    )
    crossing = crossings.get(key)
    if crossing is None:
        crossing = crossings[key] = _crossing(context, callback, transforms, result_avals, program)
    equation = Equation(
        context=context,
        crossing=crossing,
        token=_token(context, callback) if kind.ordered else None,
        operands=crossing.pack(operands),
    )
    emitted = _emit(equation, platforms[0], device_index)
    handlers = context.module_context.host_callbacks
    program.wrapped = program.wrapped or not (handlers and is_handler(handlers[-1]))
    if kind.ordered:
        # Updated, not replaced: the program may have tokens of other effects, such as JAX's ordered callbacks.
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({ordered: emitted.token})))
    if kind.identity:
        return operands
    return crossing.unpack(emitted.results)


def _crossing(
    context: Any, callback: HostCallback, transforms: Transforms, result_avals: Sequence[Any], program: Program
) -> Crossing:
    spread = _is_spread(context.module_context.axis_context)
    if callback.kind.in_place:
        # An in-place callback gets the device's memory, so nothing is converted.
        wires_in, wires_out = [Wire(aval) for aval in context.avals_in], [Wire(aval) for aval in result_avals]
    else:
        wires_in = [wire_of(aval) for aval in context.avals_in]
        wires_out = [wire_of(aval, as_bits=spread) for aval in result_avals]
    return Crossing(Host(callback, transforms, context.avals_in, result_avals, program), wires_in, wires_out)


def _token(context: Any, callback: HostCallback) -> Any:
    """Return the token that orders a callback after the previous one."""
    try:
        return context.tokens_in.get(ordered)
    except KeyError:
        # JAX lowers a function that holds it as if it had no effects.
        raise NotImplementedError(
            f"{callback} keeps an order, and was used in a function that JAX lowers without the token that carries the "
            f"order (at {str(context.name_stack) or 'the top of the program'}). Call back outside of that function, or "
            "use pure_callback, io_callback or debug.callback, which keep no order unless asked to."
        ) from None


# XLA applies the function of these operations in any order. A callback in it makes the CPU compiler abort.
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
    """Return the mesh axes that a shard_map leaves to the compiler."""
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        return []
    return [name for name in axis_context.mesh.axis_names if name not in axis_context.manual_axes]


def _lower_on_first(context: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """In a shard_map that leaves some axes to the compiler, call on the first device of those axes (X4).

    Only callbacks without result and token: all devices would need the result or the token of the others.
    """
    axes = tuple(_automatic_axes(context.module_context.axis_context))
    primitive = context.primitive

    def on_first(*values: Any) -> list[Any]:
        def each() -> list[Any]:
            first = jax.lax.axis_index(axes) == 0
            return list(jax.lax.cond(first, lambda: primitive.bind(*values, **params), lambda: []))

        return list(jax.shard_map(each, in_specs=(), out_specs=[])())

    return list(mlir.lower_fun(on_first)(context, *operands))


def _is_spread(axis_context: Any) -> bool:
    """Return whether the compiler partitions the program over devices (jit over a mesh)."""
    return not isinstance(axis_context, mlir.SPMDAxisContext) and getattr(axis_context, "num_devices", 1) > 1


def _emit(equation: Equation, platform: str, device_index: Any) -> Emitted:
    axis_context = equation.context.module_context.axis_context
    callback = equation.crossing.host.callback
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return _emit_per_device(equation, platform, axis_context, device_index)
    count = getattr(axis_context, "num_devices", 1)
    index = position_among(callback, device_index, count, lambda: _devices_told(callback, axis_context))
    if callback.kind.in_place:
        return _emit_in_place(equation, platform, None, count)
    program = equation.crossing.host.program
    if count == 1:
        if platform == "cpu":
            return views.views(equation, _cpu_devices(equation), None)
        return _emit_arrays(equation, platform, lambda _: program.device_at(0), None, None)
    if platform == "cpu" or platform in GPU_PLATFORMS:
        kind = "cpu" if platform == "cpu" else "gpu"
        targets = (f"xla_ffi_python_{kind}_callback", f"xla_ffi_partitioned_python_{kind}_callback")
        if callback.partitioned:
            return transports.parts(equation, targets[1])
        return transports.one_of_many(equation, targets, index)
    if callback.partitioned:
        raise NotImplementedError(f"{callback}: partitioned=True is not supported on {platform}; use shard_map.")
    sharding = _compat.one_device_sharding(index, len(equation.crossing.result_avals))
    return transports.send_and_receive(equation, lambda _: program.device_at(index), None, sharding)


def _devices_told(callback: HostCallback, axis_context: Any) -> Sequence[Any]:
    _compat.check_devices_are_told(callback)
    devices: Sequence[Any] = axis_context.device_assignment
    return devices


def _emit_per_device(equation: Equation, platform: str, axis_context: Any, device_index: Any) -> Emitted:
    """Emit the callback under pmap or shard_map, where every device calls with its own shard (H9)."""
    mesh = axis_context.mesh
    callback = equation.crossing.host.callback
    if axis_context.manual_axes != frozenset(mesh.axis_names):
        # GSPMD aborts the process at an operation in place.
        if not (callback.kind.takes_automatic_axes and _compat.uses_shardy()):
            raise partial_automatic(callback, axis_context.manual_axes, mesh.axis_names)
        # What is left here is pure and in place: the compiler gives each device of these axes the whole of the part.
        return _emit_in_place(equation, platform, None, 1)
    if not isinstance(device_index, int):
        raise placed_per_device(callback)
    position_among(callback, device_index, mesh.size, lambda: ())
    if callback.kind.ordered:
        _compat.check_shard_map(callback)
    ranks = [aval.ndim for aval in equation.crossing.result_avals]
    sharding = _compat.whole_sharding(ranks if equation.token is None else [0, *ranks], manual=True)
    if callback.kind.in_place:
        return _emit_in_place(equation, platform, sharding, 1)
    if platform == "cpu":
        return views.views(equation, _cpu_devices(equation), sharding)
    # A position in the mesh is not a device id, so the handler asks the execution for its devices.
    position = hlo.PartitionIdOp().result
    program = equation.crossing.host.program
    return _emit_arrays(equation, platform, lambda extra: program.device_at(int(extra[0])), position, sharding)


def _emit_in_place(equation: Equation, platform: str, sharding: Any, count: int) -> Emitted:
    """Emit a callback that writes into device memory; it has a target of its own (B5)."""
    callback = equation.crossing.host.callback
    if platform == "cpu":
        target = "xla_buffer_python_cpu_callback"
    elif platform in GPU_PLATFORMS:
        # XLA records a call of this target into a command buffer once, then runs the recording, not the function.
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
    devices = _cpu_devices(equation) if platform == "cpu" else {}
    return views.in_place(equation, target, sharding, devices)


def _emit_arrays(
    equation: Equation, platform: str, locate: Callable[..., Any], position: Any, sharding: Any
) -> Emitted:
    if platform in GPU_PLATFORMS:
        return transports.arrays(equation, "xla_ffi_python_gpu_callback", locate, position, sharding)
    # Inside a manual computation Shardy needs no sharding, and JAX's emitter would give all results the same one,
    # whatever their ranks. GSPMD refuses an operation without a sharding.
    return transports.send_and_receive(equation, locate, position, None if _compat.uses_shardy() else sharding)


class _CpuDevices(dict[int, Any]):
    """The device object for each device id of a client; an id is unique among all its processes.

    An id without a device shows a bug in JAX. While an array that `np.asarray` made of a runtime's buffer is alive,
    nanobind mistakes a later buffer at the same stack address for the old one, and reads garbage from it.
    """

    def __init__(self, client: Any = None) -> None:
        # JAX can lower a program for CPU without a CPU backend.
        with contextlib.suppress(RuntimeError):
            devices = jax.local_devices(backend="cpu") if client is None else client.local_devices()
            self.update({device.id: device for device in devices})

    def __missing__(self, ordinal: int) -> Any:
        raise RuntimeError(
            "the runtime gave this callback a buffer that is not its own, because the function of some "
            "buffer_callback kept an array that np.asarray(buffer) gave it, or failed and was kept with its "
            "arrays, and JAX takes later buffers for that one. Let functions of buffer_callback copy what they "
            "keep, with np.asarray(buffer).copy()."
        )


# The devices of JAX's current clients. A program keeps the table of its own client, even after `clear_backends`.
_tables: dict[Any, _CpuDevices] = {}
_compat.on_backends_cleared(_tables.clear)


def _cpu_devices(equation: Equation) -> _CpuDevices:
    """Return the CPU devices of this process, for a program that is being lowered.

    A platform of another name may have devices that are CPUs to JAX, with the same numbers: the program says whose.
    """
    client = _compat.client_of(equation.context.module_context)
    if not _compat.clearing_is_told():
        # This JAX does not report when it replaces its devices, so they are asked for each time.
        _tables.clear()
    if client not in _tables:
        _tables[client] = _CpuDevices(client)
    return _tables[client]
