"""pmap, shard_map and jit over a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...spec.jax_versions import shard_map
from ..values import Value
from ..worlds import ModelFunction, World
from .base import JaxFunction, Place, Setting, offsets_source


def _slices(x: jax.Array, device_count: int, stride: float) -> jax.Array:
    """One copy of x per device, each with its offset, along a new first axis."""
    offsets = np.arange(device_count, dtype=np.float32) * np.float32(stride)
    return x + offsets.reshape((-1,) + (1,) * x.ndim)


def _slices_source(place: Place, stride: float) -> str:
    """The source of `_slices`."""
    reshape = f".reshape(-1{', 1' * place.rank})" if place.rank else ""
    return f"x + {offsets_source(place.device_count, stride)}{reshape}"


def _model_per_device(function: ModelFunction, stride: float, own: bool = False) -> ModelFunction:
    """Every device runs the function on its own slice; with `own`, a process sums over its own devices alone."""

    def mapped(world: World, x: Value) -> Value:
        total = x - x
        for device in world.own_devices if own else range(world.device_count):
            total = total + function(world.on_device(device), x + device * stride)
        return total

    return mapped


class Pmap:
    name = "pmap"
    promises = ("H9",)
    radix = 9

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        devices = setting.devices
        mapped = jax.pmap(function, devices=devices)
        own = [place for place, device in enumerate(devices) if device.process_index == jax.process_index()]

        def per_device(x: jax.Array) -> jax.Array:
            slices = _slices(x, len(devices), stride)
            # Over several processes, pmap takes and returns the slices of its own process's devices.
            return jnp.sum(mapped(slices if len(own) == len(devices) else slices[own[0] : own[-1] + 1]), axis=0)

        return per_device

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return _model_per_device(function, stride, own=True)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
{place.helper} = jax.pmap({function}, devices=devices)

def {place.name}(x):
    return jnp.sum({place.helper}({_slices_source(place, stride)}), axis=0)"""


class ShardMap:
    name = "shard_map"
    promises = ("H9",)
    radix = 9

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        devices = setting.devices
        mesh = setting.mesh
        # Under jit, as users run it: without jit, shard_map runs its body operation by operation on
        # all devices, ten times as slowly.
        mapped = jax.jit(
            shard_map(
                lambda shard: function(shard[0])[None],
                mesh=mesh,
                in_specs=PartitionSpec(mesh.axis_names),
                out_specs=PartitionSpec(mesh.axis_names),
            )
        )

        def per_device(x: jax.Array) -> jax.Array:
            return jnp.sum(mapped(_slices(x, len(devices), stride)), axis=0)

        return per_device

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        return _model_per_device(function, stride)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
spec = PartitionSpec(mesh.axis_names)
{place.helper} = jax.jit(
    shard_map(lambda shard: {function}(shard[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
)

def {place.name}(x):
    return jnp.sum({place.helper}({_slices_source(place, stride)}), axis=0)"""


class JitOverMesh:
    """One computation over all devices; a callback sees the whole operand, once."""

    name = "pjit"
    promises = ("H10",)
    radix = 9

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        devices = setting.devices
        mesh = setting.mesh
        sharded = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        replicated = NamedSharding(mesh, PartitionSpec())

        def whole(x: jax.Array) -> jax.Array:
            slices = _slices(x, len(devices), stride)
            slices = jax.lax.with_sharding_constraint(slices, sharded)
            return jnp.sum(function(slices), axis=0)

        return jax.jit(whole, in_shardings=replicated, out_shardings=replicated)

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        def whole(world: World, x: Value) -> Value:
            slices = x.stack([device * stride for device in range(world.device_count)])
            return function(world.on_mesh(), slices).sum_stacked()

        return whole

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
sharded = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
replicated = NamedSharding(mesh, PartitionSpec())

def {place.helper}(x):
    slices = jax.lax.with_sharding_constraint({_slices_source(place, stride)}, sharded)
    return jnp.sum({function}(slices), axis=0)

{place.name} = jax.jit({place.helper}, in_shardings=replicated, out_shardings=replicated)"""
