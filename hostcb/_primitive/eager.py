"""Callbacks outside jit go directly to the queue or the user function, without a program (H4, H16, H18).

JAX compiles a program for each of its own callbacks, which takes milliseconds and keeps the function alive in a cache.
Outside jit the operands' values are known. So hostcb copies them and hands them to `Host`, as a handler does.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _compat
from .._compat import waiting
from .._errors.failures import beside_cause, failure_log, shown_cause
from .._errors.frames import frames_around
from .._errors.refusals import HostcbCallbackError
from .._runtime.dispatch.postponed import raise_what_is_left
from .._runtime.dispatch.programs import Execution, Program
from .._runtime.executions.executions import tracker
from .._runtime.host import Host
from .._spec import flags
from .._spec.callback import HostCallback, Transforms
from .._spec.kinds import Kind
from .._spec.placement import check_reduced, position_among
from .._threads.running import inside_callback, running

# JAX's cache of programs for single operations has thousands of entries, and each would keep its function alive.
MOST_COMPILED = 16

PACKAGE = __name__.partition(".")[0]

# The hosts of taps whose values wait. The queue keeps a host alive, and the host its callback, so no other has this id.
_waiting: weakref.WeakValueDictionary[tuple[Any, ...], Host] = weakref.WeakValueDictionary()


def run_eagerly(
    primitive: Any,
    *operands: Any,
    **params: Any,
) -> Sequence[Any]:
    """The implementation of the primitive on concrete arrays."""
    if running.frame.pending is not None:
        raise_what_is_left()
    if failure_log.due and not inside_callback():
        failure_log.raise_due()
    on_one_device = all(map(_is_on_one_device, operands))
    if not (on_one_device and jax.process_count() == 1) and not all(map(_is_addressable, operands)):
        # Other processes have shards of the value. Only a program that all processes run can gather it.
        return _run_program(primitive, operands, params)
    callback: HostCallback = params["callback"]
    kind = callback.kind
    if kind.in_place:
        return _run_program(primitive, operands, params)
    callback = callback.named_by_call(lambda: frames_around(sys._getframe()))
    if on_one_device:
        avals = [operand.aval for operand in operands]
    else:
        avals = list(map(jax.typeof, operands))
        check_reduced(callback, avals)
    devices = list(_deciding(operands).sharding.device_set) if on_one_device and operands else _devices(operands)
    if kind.pure and not any(math.prod(aval.shape) for aval in params["result_avals"]):
        # There is nothing to compute, so a program does not call back either (X2).
        return _placed([np.zeros(aval.shape, aval.dtype) for aval in params["result_avals"]], operands, devices)
    device = devices[position_among(callback, params["device_index"], len(devices), lambda: devices)]
    if callback.eager_operands is not None:
        arrays = callback.eager_operands(operands)
    else:
        # With the operands' own dtypes, since NumPy gives a wider one to a number that JAX traced as a literal.
        arrays = [_copied(operand, aval.dtype) for operand, aval in zip(operands, avals, strict=True)]
    if kind.identity and _is_handed_over(callback, params["transforms"], avals, device, arrays):
        results: Sequence[np.ndarray] = ()
    else:
        program = Program([callback])
        host = Host(callback, params["transforms"], avals, params["result_avals"], program)
        if kind.ordered:
            program.keeps_order = True
            execution = tracker.execution(program, devices, devices)
            results = execution.dispatch.around(lambda: _run_in_order(execution, host, device, arrays))
        elif kind.pure:
            # Its host leaves the mesh of `jax.set_mesh` by itself.
            results = _run(host, device, arrays)
        else:
            with _compat.without_mesh():
                results = tracker.run_without_order(program, device, lambda: _run(host, device, arrays))
    if kind.identity:
        waiting.cover_by_effects_barrier(device, tracker.drain)
        return operands if on_one_device else [x if isinstance(x, jax.Array) else _as_array(x) for x in operands]
    if not results:
        return []
    _check_values(kind, results)
    return _placed(results, operands, devices)


def _copied(operand: Any, dtype: Any) -> np.ndarray:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return np.array(operand, dtype=dtype)
    # A transfer guard is for what the program does not ask for. Slower, so only now; what has failed fails again.
    return np.array(jax.device_get(operand), dtype=dtype)


def _run_program(primitive: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """Run a callback that needs a program, as in-place callbacks do: only a program makes buffers."""
    callback: HostCallback = params["callback"]
    # To look for the operation that made a NaN, JAX would call this function again.
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        results: Sequence[Any] = _compiled(primitive, _identity(callback.function), **params)(*operands)
    if not callback.kind.identity:
        _check_values(callback.kind, [shard.data for each in results for shard in each.addressable_shards])
    return results


def _check_values(kind: Kind, results: Sequence[Any]) -> None:
    """Check the results as JAX does for `jax_debug_nans` and `jax_debug_infs` after each operation outside jit.

    Raises:
        FloatingPointError: one has a NaN or an infinity, and the flag is on.
    """
    config: Any = jax.config
    checks = {"nan": (config.jax_debug_nans, np.isnan), "inf": (config.jax_debug_infs, np.isinf)}
    for word, (is_on, is_bad) in checks.items():
        for result in results if is_on else ():
            if jnp.issubdtype(result.dtype, np.inexact) and np.any(is_bad(np.asarray(result))):
                raise FloatingPointError(f"invalid value ({word}) encountered in {kind.name}")


def _identity(function: Any) -> tuple[int, ...]:
    """Return the identity of the user's function: equal ones need not do the same, see `_lowering.rule`."""
    # An object of hostcb that stands for it is made each time, and so is a method.
    while type(function).__module__.startswith(f"{PACKAGE}.") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if isinstance(function, types.MethodType):
        return id(function.__self__), id(function.__func__)
    return (id(function),)


@functools.lru_cache(maxsize=MOST_COMPILED)
def _compiled(primitive: Any, _: tuple[int, ...], /, **params: Any) -> Any:
    return jax.jit(lambda *operands: primitive.bind(*operands, **params))


def _as_array(literal: Any) -> Any:
    """Convert a literal of a traced program to an array of the same type."""
    aval = jax.typeof(literal)
    array = jnp.asarray(literal)
    if aval.weak_type and array.dtype == aval.dtype:
        return array
    with jax.enable_x64(True):
        return jnp.asarray(literal, dtype=aval.dtype)


def _is_handed_over(
    callback: HostCallback, transforms: Transforms, avals: Sequence[Any], device: Any, arrays: Sequence[np.ndarray]
) -> bool:
    """Queue a value in one step if nothing is known to run; if not, return False.

    Nobody can wait for a tap that does not wait itself, so there is no execution. A program of another thread that
    begins after the look overlaps this tap, and so has no order with it (H5). A barrier that begins before the queue
    has accepted the value need not cover it, as if the tap had begun later.
    """
    if flags.inline.value or not tracker.is_quiet():
        return False
    host = _host_of_tap(callback, transforms, avals)
    tracker.admit_program(host.program, nested=False)
    return host.offer(device, arrays)


def _host_of_tap(callback: HostCallback, transforms: Transforms, avals: Sequence[Any]) -> Host:
    """Return the host of a tap: that of a value which waits, if its callback and types are the same.

    Where taps follow each other outside jit, many values wait, and a host with a program for each would cost more than
    all the rest of the queue.
    """
    key = (id(callback), transforms, *avals)
    host = _waiting.get(key)
    if host is None:
        host = _waiting[key] = Host(callback, transforms, avals, (), Program([callback]))
    return host


def _run_in_order(execution: Execution, host: Host, device: Any, arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    try:
        tracker.add(execution)
        tracker.wait_before(execution)
        with _compat.without_mesh():
            return _run(host, device, arrays)
    finally:
        tracker.end(execution, None)


def _run(host: Host, device: Any, arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    if host.callback.eager_operands is not None:
        try:
            return host.run(device, arrays)
        except BaseException as exception:
            host.report(device, exception)
            raise
    if flags.inline.value:
        # The flag is for an unbroken traceback from the user function to the line that called back.
        try:
            return host.run(device, arrays)
        finally:
            if host.callback.kind.identity:
                host.ran_unqueued(device)
    if host.callback.kind.identity:
        host.tap(device, arrays)
        return ()
    try:
        return host.call(device, arrays)
    except HostcbCallbackError as error:
        failure = error.__cause__
        cause = shown_cause(failure)
        text = beside_cause(str(error), cause)
    # Outside of the handler, so that the user's error has no context, as from a compiled program.
    shown = jax.errors.JaxRuntimeError(text)
    shown.__cause__ = cause
    return failure_log.raise_error(shown, failure)


def _is_on_one_device(operand: Any) -> bool:
    """Return whether an operand is an array whose type has no mesh, as nearly every one outside jit is."""
    return isinstance(operand, jax.Array) and isinstance(operand.sharding, jax.sharding.SingleDeviceSharding)


def _is_addressable(operand: Any) -> bool:
    return not isinstance(operand, jax.Array) or operand.is_fully_addressable


def _deciding(arrays: Sequence[Any]) -> Any:
    """Return the array on whose devices the callback runs: as in jit, committed operands decide."""
    return arrays[0] if len(arrays) == 1 else min(arrays, key=lambda array: not array.committed)


def _devices(operands: Sequence[Any]) -> list[Any]:
    """Return the devices of the operands' mesh, in its order."""
    arrays = [operand for operand in operands if isinstance(operand, jax.Array)]
    if arrays:
        sharding = _deciding(arrays).sharding
        if isinstance(sharding, jax.sharding.NamedSharding) and not sharding.mesh.empty:
            return list(sharding.mesh.devices.flat)
        return sorted(sharding.device_set, key=lambda device: device.id)
    # Without operands, the default device.
    return list(jnp.zeros(()).devices())


def _placed(results: Sequence[np.ndarray], operands: Sequence[Any], devices: Sequence[Any]) -> list[Any]:
    """Put the results where jit would: on the operands' device, or replicated over their mesh."""
    committed = [x for x in operands if isinstance(x, jax.Array) and x.committed]
    if not committed or len(devices) == 1:
        return [_compat.copied_to_device(result, devices[0] if committed else None) for result in results]
    sharding = committed[0].sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = sharding.mesh
    else:
        mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    # Copied, since JAX may share the memory of a NumPy array, and the callback may change that array.
    return [jax.device_put(np.array(result), everywhere) for result in results]
