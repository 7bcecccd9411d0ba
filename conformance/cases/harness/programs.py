"""Programs over the devices of a case, in each layout."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...spec.jax_versions import shard_map

WIDTH = 3

Function: TypeAlias = Callable[..., Any]


def row(number: Any) -> Any:
    """An operand of one device, in a program."""
    return jnp.full(WIDTH, number, jnp.float32)


def rows(*numbers: float) -> list[Any]:
    """The same as arrays of NumPy."""
    return [np.full(WIDTH, number, np.float32) for number in numbers]


def repeated(step: Function, times: int) -> list[Function]:
    """Two programs of so many steps: one by one, and in a loop."""

    def one_by_one(x: Any) -> Any:
        for _ in range(times):
            x = step(x)
        return x

    def in_a_loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, carry: step(carry), x)

    return [one_by_one, in_a_loop]


class Programs:
    """One layout of programs over some devices: the usual operand, and how a function is compiled."""

    def __init__(self, layout: str, devices: Sequence[jax.Device]) -> None:
        self.layout, self.devices = layout, devices

    @property
    def operand(self) -> Any:
        count = 1 if self.layout == "jit" else len(self.devices)
        operand = np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)
        return operand[0] if self.layout == "jit" else operand

    @property
    def callback_shape(self) -> tuple[int, ...]:
        """The shape of the operand as one callback sees it."""
        one = (WIDTH,)
        return {"jit": one, "pmap": one, "pjit": (len(self.devices), WIDTH), "shard_map": (1, WIDTH)}[self.layout]

    @property
    def copies(self) -> int:
        """How many devices run the callback of one program."""
        return len(self.devices) if self.layout in ("pmap", "shard_map") else 1

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.asarray(self.devices), ("devices",))

    @property
    def split(self) -> NamedSharding:
        """A sharding with a row of the operand on each device."""
        return NamedSharding(self.mesh, PartitionSpec("devices"))

    def compile(self, function: Function) -> Any:
        spec = PartitionSpec("devices")
        if self.layout == "jit":
            return jax.jit(function)
        if self.layout == "pmap":
            return jax.pmap(function, axis_name="devices", devices=self.devices)
        if self.layout == "pjit":
            return jax.jit(function, in_shardings=self.split, out_shardings=self.split)
        return jax.jit(shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=spec))

    def on_each_device(self, x: Any) -> Any:
        """The operand of a program in which each callback gets `x`."""
        if self.layout in ("jit", "pjit"):
            return x
        return jax.tree.map(lambda leaf: np.stack([leaf] * self.copies), x)

    def parts(self, x: Any) -> list[Any]:
        """The operand of the callback on each device that runs it, in a program on `x`."""
        if self.layout in ("jit", "pjit"):
            return [x]
        places = [place if self.layout == "pmap" else slice(place, place + 1) for place in range(self.copies)]
        return [jax.tree.map(operator.itemgetter(place), x) for place in places]
