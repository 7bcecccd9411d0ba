"""pmap, shard_map and jit over a mesh."""

from __future__ import annotations

from collections.abc import Iterable

from ..values import Value
from ..worlds import ModelFunction, World
from .base import Place, Transform, offsets_source


def _slices(devices: Iterable[int], stride: float) -> str:
    """One copy of x for each of these devices, each with its offset, along a new first axis."""
    return f"x + {offsets_source(devices, stride)}.reshape((-1,) + (1,) * x.ndim)"


def _summed(function: ModelFunction, stride: float, world: World, x: Value, devices: range) -> Value:
    """Each of these devices runs the function on its own slice."""
    total = x - x
    for device in devices:
        total = total + function(world.on_device(device), x + device * stride)
    return total


class Pmap(Transform):
    name = "pmap"
    promises = ("H9",)
    radix = 9

    # Over several processes, pmap takes, returns and sums the slices of its own process's devices.
    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        return _summed(function, stride, world, x, world.own_devices)

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
{place.helper} = jax.pmap({function}, devices=devices)

def {place.name}(x):
    return jnp.sum({place.helper}({_slices(place.own, stride)}), axis=0)"""


class ShardMap(Transform):
    name = "shard_map"
    promises = ("H9",)
    radix = 9

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        return _summed(function, stride, world, x, range(world.device_count))

    def source(self, function: str, place: Place, stride: float) -> str:
        # Under jit, as users run it: without jit, shard_map runs its body operation by operation on all devices, ten
        # times as slowly.
        return f"""\
spec = PartitionSpec(mesh.axis_names)
{place.helper} = jax.jit(
    shard_map(lambda shard: {function}(shard[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
)

def {place.name}(x):
    return jnp.sum({place.helper}({_slices(range(place.device_count), stride)}), axis=0)"""


class JitOverMesh(Transform):
    """One computation over all devices; a callback sees the whole operand, once."""

    name = "pjit"
    promises = ("H10",)
    radix = 9

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        slices = x.stack([device * stride for device in range(world.device_count)])
        return function(world.on_mesh(), slices).sum_stacked()

    def source(self, function: str, place: Place, stride: float) -> str:
        return f"""\
sharded = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
replicated = NamedSharding(mesh, PartitionSpec())

def {place.helper}(x):
    slices = jax.lax.with_sharding_constraint({_slices(range(place.device_count), stride)}, sharded)
    return jnp.sum({function}(slices), axis=0)

{place.name} = jax.jit({place.helper}, in_shardings=replicated, out_shardings=replicated)"""
