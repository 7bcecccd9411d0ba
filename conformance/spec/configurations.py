"""Configurations of JAX, and placements on its devices, for cells that do not use the defaults.

A configuration is a setting of JAX that a worker changes for one cell. Settings that JAX and XLA read when they make
their devices belong to the worker's topology instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import jax

from .topology import CPU_CONFIGURATIONS, DEFAULT, SYNCHRONOUS

JIT_DISABLED = "disable_jit"
X64 = "x64"

Context: TypeAlias = Callable[[], AbstractContextManager[object]]


def _setting(name: str, value: bool) -> Context:
    @contextmanager
    def in_force() -> Iterator[None]:
        # This sets the option for all threads: JAX's own context managers set it for one, and callbacks run in others.
        before = jax.config.values[name]
        jax.config.update(name, value)
        try:
            yield
        finally:
            jax.config.update(name, before)

    return in_force


CONTEXTS: dict[str, Context] = {
    X64: _setting("jax_enable_x64", True),
    "gspmd": _setting("jax_use_shardy_partitioner", False),
    JIT_DISABLED: jax.disable_jit,
}
"""The configurations that a running process can switch on."""

CONFIGURATIONS = (DEFAULT, *CONTEXTS, *CPU_CONFIGURATIONS)

_OPTIONS_NEEDED = {"gspmd": "jax_use_shardy_partitioner", SYNCHRONOUS: "jax_cpu_enable_async_dispatch"}
"""The options of JAX that not every release has, by the configurations that set them."""


def why_no_configuration(name: str) -> str | None:
    """The reason if this release does not have the option that a configuration sets; otherwise None."""
    option = _OPTIONS_NEEDED.get(name)
    if option is None or option in jax.config.values:
        return None
    return f"JAX {jax.__version__} has no option {option}"


@dataclass(frozen=True)
class Placement:
    """Which of a worker's devices a cell gets, and how its meshes are laid out."""

    name: str
    minimum: int = 1
    """The number of devices from which this placement differs from the others."""
    grid: bool = False
    """Whether meshes have two axes."""
    part: bool = False
    """Whether the cell uses only half of the devices, without the first one."""
    last: bool = False
    """Whether the cell uses only the last device."""

    def count(self, device_count: int) -> int:
        if self.last:
            return 1
        return device_count // 2 if self.part else device_count

    def choose(self, devices: Sequence[jax.Device]) -> Sequence[jax.Device]:
        first = len(devices) - 1 if self.last else int(self.part)
        return devices[first : first + self.count(len(devices))]


PLACEMENTS = {
    placement.name: placement
    for placement in (
        Placement("all"),
        Placement("grid", minimum=4, grid=True),
        Placement("part", minimum=4, part=True),
        Placement("part_grid", minimum=8, grid=True, part=True),
        Placement("last", minimum=2, last=True),
    )
}
