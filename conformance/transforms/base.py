"""A transform: one object with two faces, what JAX does to a function and what that must mean.

Every transform turns a function of one array into a function of one array of the same shape, so
that any two compose. It makes its own lanes, steps, or device slices out of the operand by adding
distinct offsets, and sums their results; every callback of a program so sees a value of its own.
The control-flow transforms do not feed one step's result to the next: no data dependency holds the
callbacks in order, only the implementation's promise does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh

from conformance.model import ModelFunction

JaxFunction: TypeAlias = Callable[[jax.Array], jax.Array]
Probe: TypeAlias = Callable[[str, jax.Array], jax.Array]
"""The callback under test: site and operand in, what the callback gives back out."""


@dataclass(frozen=True)
class Setting:
    """What a transform's faces may use of the program around them."""

    probe: Probe
    devices: Sequence[jax.Device]
    grid: bool = False
    """Whether meshes have two axes."""

    @property
    def mesh(self) -> Mesh:
        devices = np.asarray(self.devices)
        return Mesh(devices.reshape(2, -1), ("rows", "columns")) if self.grid else Mesh(devices, ("devices",))


class Transform(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def promises(self) -> tuple[str, ...]: ...

    @property
    def radix(self) -> int:
        """An odd number, more than the largest of the multiples of `stride` that it adds."""

    def jax_face(self, function: JaxFunction, setting: Setting, stride: float) -> JaxFunction:
        """The transformed JAX function; its offsets are multiples of `stride`."""

    def model_face(self, function: ModelFunction, stride: float) -> ModelFunction:
        """The same in the semantic model: expected callbacks and result."""
