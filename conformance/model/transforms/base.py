"""A transform: one object with two faces. One wraps a JAX function, the other computes the right outcome.

The JAX face is a text: cells run it, and programs that import nothing of the suite have it.

Every transform turns a function of one array into a function of one array of the same shape, so
that any two compose. It makes its batch elements, steps, or device slices from the operand by adding distinct
offsets, and sums their results. So every callback of a program sees a different value. The
control-flow transforms do not pass one step's result to the next: the order of the callbacks comes
only from the implementation, and not from a data dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...spec.jax_versions import shard_map
from ..values import Value
from ..worlds import ModelFunction, World

JaxFunction: TypeAlias = Callable[[jax.Array], jax.Array]
Probe: TypeAlias = Callable[[str, jax.Array], jax.Array]
"""The callback under test: it takes a site and an operand, and returns the callback's result."""


@dataclass(frozen=True)
class Setting:
    """The part of the surrounding program that a transform's faces may use."""

    probe: Probe
    devices: Sequence[jax.Device]
    grid: bool = False
    """Whether meshes have two axes."""
    taps_tangents: bool = False
    """Whether the rules of custom derivatives run the callback on tangents, too."""

    @property
    def mesh(self) -> Mesh:
        devices = np.asarray(self.devices)
        return Mesh(devices.reshape(2, -1), ("rows", "columns")) if self.grid else Mesh(devices, ("devices",))


@dataclass(frozen=True)
class Place:
    """The place of a transform in a program.

    The program also has `callback`, the callback under test, and `devices` and `mesh` where its text names them.
    """

    name: str
    """The name of the transformed function."""
    device_count: int
    own: Sequence[int]
    """The devices of the process that runs the program."""
    taps_tangents: bool = False
    """As in `Setting`."""

    @property
    def helper(self) -> str:
        """A name for a second function, that nothing else in the program has."""
        return f"{self.name}_helper"


def offsets_source(numbers: Iterable[int], stride: float) -> str:
    """An array of these multiples of a stride."""
    return f"np.float32([{', '.join(str(number * int(stride)) for number in numbers)}])"


class Transform:
    name: str
    promises: tuple[str, ...]
    radix = 1
    """An odd number, larger than the largest multiple of `stride` that the transform adds."""

    def source(self, function: str, place: Place, stride: float) -> str:
        """The JAX face as statements that define `place.name`; `function` is the name of the inner function.

        Its offsets are multiples of `stride`.
        """
        raise NotImplementedError

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        """The same in the semantic model: expected callbacks and result."""
        return lambda world, x: self.outcome(function, stride, world, x)

    def outcome(self, function: ModelFunction, stride: float, world: World, x: Value) -> Value:
        """The result of the transformed function on `x`; its callbacks run in the world."""
        raise NotImplementedError

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        own = [number for number, one in enumerate(setting.devices) if one.process_index == jax.process_index()]
        place = Place(f"in_{self.name}", len(setting.devices), own, setting.taps_tangents)
        names = {
            **{"jax": jax, "jnp": jnp, "np": np, "shard_map": shard_map},
            **{"NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec},
            **{"function": function, "callback": setting.probe, "devices": setting.devices, "mesh": setting.mesh},
        }
        exec(compile(self.source("function", place, stride), f"<{self.name}>", "exec"), names)
        return names[place.name]
