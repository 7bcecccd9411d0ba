"""Callbacks outside jit: straight to the queue or the function, without a computation (H4, H16, H18).

Compiling a program for each callback, as JAX does for its own, costs milliseconds and keeps the function alive in a
cache. Here the operand's value is at hand, so it is copied and takes the same way as one that a handler receives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _flags, _hooks, _jax
from ._callback import HostCallback
from ._executions import Program, account
from ._handlers import Host
from ._lowering import out_of_range, outside
from ._results import Refused

# JAX's own cache of programs for single operations is a few thousand long, and each keeps its function alive.
MOST_COMPILED = 16


def run_eagerly(
    primitive: Any,
    *operands: Any,
    **params: Any,
) -> Sequence[Any]:
    """The implementation of the primitive on concrete arrays."""
    if not all(operand.is_fully_addressable for operand in operands if isinstance(operand, jax.Array)):
        # Parts of the value are in other processes: only a program that all of them run can collect it.
        return _jax.run_compiled(primitive, operands, params)
    callback: HostCallback = params["callback"]
    kind = callback.kind
    if kind.in_place:
        with jax.disable_jit(False):
            return _compiled(primitive, **params)(*operands)
    devices = _devices(operands)
    device = _device(callback, params["device_index"], devices)
    # Of the operands' own types: a number that JAX took for a literal is wider in NumPy.
    arrays = [np.array(operand, dtype=jax.typeof(operand).dtype) for operand in operands]
    program = Program([str(callback)])
    host = Host(callback, params["transforms"], list(map(jax.typeof, operands)), params["result_avals"], program)
    if kind.ordered:
        execution = account.add(program, devices, devices)
        try:
            account.wait_before(execution)
            with _jax.without_mesh():
                results = _run(host, device, arrays)
        finally:
            account.end(execution, None)
    else:
        with _jax.without_mesh():
            results = _run(host, device, arrays)
    if kind.identity:
        _hooks.cover_by_effects_barrier(device, account.drain)
        return [operand if isinstance(operand, jax.Array) else _as_array(operand) for operand in operands]
    return _placed(results, operands, devices)


@functools.lru_cache(maxsize=MOST_COMPILED)
def _compiled(primitive: Any, **params: Any) -> Any:
    """A program for a function that fills buffers: there is no way to make them but to run one."""
    return jax.jit(lambda *operands: primitive.bind(*operands, **params))


def _device(callback: HostCallback, wanted: Any, devices: Sequence[Any]) -> Any:
    """The device that calls, by its number among `devices` or as itself."""
    if not isinstance(wanted, int):
        if wanted not in devices:
            raise outside(callback, wanted, devices)
        return wanted
    if wanted >= len(devices):
        raise out_of_range(callback, wanted, len(devices))
    return devices[wanted]


def _as_array(literal: Any) -> Any:
    """A number of a traced program as the array that it stands for."""
    aval = jax.typeof(literal)
    array = jnp.asarray(literal)
    return array if aval.weak_type and array.dtype == aval.dtype else jnp.asarray(literal, dtype=aval.dtype)


def _run(host: Host, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    if _flags.inline.value:
        # The flag's purpose: an unbroken traceback, to the line that called back.
        return host.run(device, arrays)
    if host.callback.kind.identity:
        host.tap(device, arrays)
        return ()
    results = host.call(device, arrays)
    if isinstance(results, Refused):
        error = host.refuse(device, results.failure)
        raise jax.errors.JaxRuntimeError(str(error)) from results.failure
    return results


def _devices(operands: Sequence[Any]) -> list[Any]:
    """The devices of the operands' mesh, in its order; as in jit, what was put somewhere on purpose decides."""
    arrays = [operand for operand in operands if isinstance(operand, jax.Array)]
    for operand in sorted(arrays, key=lambda array: not array.committed):
        sharding = operand.sharding
        if isinstance(sharding, jax.sharding.NamedSharding) and not sharding.mesh.empty:
            return list(sharding.mesh.devices.flat)
        return sorted(sharding.device_set, key=lambda device: device.id)
    # Nothing was put anywhere: wherever JAX puts things now.
    return list(jnp.zeros(()).devices())


def _placed(results: Sequence[np.ndarray], operands: Sequence[Any], devices: Sequence[Any]) -> list[Any]:
    """The results where jit would have put them: on the operands' device or whole on each of their mesh."""
    # Copied, since JAX may keep using a NumPy array's memory, which is the callback's.
    committed = [x for x in operands if isinstance(x, jax.Array) and x.committed]
    if not committed:
        return [jnp.array(result) for result in results]
    if len(devices) == 1:
        return [jax.device_put(np.array(result), devices[0]) for result in results]
    sharding = committed[0].sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = sharding.mesh
    else:
        mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return [jax.device_put(np.array(result), everywhere) for result in results]
