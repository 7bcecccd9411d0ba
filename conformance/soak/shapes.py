"""What a program of the soak calls back, step by step: the right history of a run, without JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..spec.callbacks import Callback
from ..spec.external_callbacks import callback_named
from .codes import POSITIONS, RESULT_MARK, base_code

CALLBACKS: Mapping[str, Callback] = {
    name: callback_named(name)
    for name in (
        *("id_tap", "id_tap_device", "id_print", "call", "io_callback", "io_callback_ordered", "pure_callback"),
        *("debug_callback", "debug_callback_ordered", "debug_print", "debug_print_ordered"),
        *("buffer_callback", "buffer_callback_side_effect", "dlpack_callback", "dlpack_callback_side_effect"),
    )
}

ONE_DEVICE, PMAP, SHARD_MAP, MESH, EAGER = "jit on one device", "pmap", "shard_map", "jit over a mesh", "outside jit"

STRAIGHT, SCAN, FORI, WHILE, WHILE_CONDITION, BRANCHES = (
    "straight",
    "scan",
    "fori_loop",
    "while_loop",
    "while_loop with a condition that calls back",
    "cond in a scan",
)


@dataclass(frozen=True)
class ProgramSpec:
    """A program: equal ones are compiled from equal source."""

    layout: str
    form: str
    kinds: tuple[str, ...]
    """The callbacks of one round of the loop."""
    trips: int
    """The rounds of a loop; a `while_loop` receives them when it runs."""
    size: int = 0
    """The elements of the array that goes along with the code, if any."""
    dtype: str = "float32"
    device: int = 0
    """The device of a program on one device, and the device that calls back in `jit` over a mesh."""

    @property
    def spread(self) -> bool:
        """Whether each of several devices calls back."""
        return self.layout in (PMAP, SHARD_MAP)

    @property
    def several_devices(self) -> bool:
        return self.spread or self.layout == MESH

    @property
    def stride(self) -> int:
        """The steps of one round."""
        return len(self.kinds) + (self.form == WHILE_CONDITION)

    def __str__(self) -> str:
        data = f" with {self.dtype}[{self.size}]" if self.size else ""
        where = "" if self.spread else f" of device {self.device}"
        return f"{self.layout}{where}, {self.form} of {self.trips}: {', '.join(self.kinds)}{data}"


DEVICE_INDEX = frozenset({"id_tap", "id_tap_device", "id_print", "call"})
"""Kinds that take the number of the device of a mesh that calls back."""

PRINT = "print"

FAILING = ("id_tap", "id_tap_device", "call", "io_callback_ordered", "debug_callback_ordered")
"""Kinds that the soak lets raise."""


def place_name(site: int) -> str:
    return f"place {site}"


@dataclass(frozen=True)
class Step:
    kind: str
    site: int
    """The place in the source, of one round. The condition of a loop is the place after all others."""

    @property
    def name(self) -> str:
        """What the function of the callback knows: a text that is printed has no place."""
        return PRINT if CALLBACKS[self.kind].prints else place_name(self.site)


CONDITION_KIND = "id_tap"
"""The kind of callback in the condition of a `while_loop`."""


class Shape:
    """The steps of one run of a program, on each of its devices."""

    def __init__(self, spec: ProgramSpec, trips: int) -> None:
        self.spec = spec
        self.trips = trips
        self.steps: Mapping[int, Step] = dict(_steps(spec, trips))
        if len(self.steps) >= POSITIONS:
            raise ValueError(f"{spec} has {len(self.steps)} steps, and a run has at most {POSITIONS - 1}")
        returning = [place for place, step in self.steps.items() if CALLBACKS[step.kind].returns_new_value]
        self._returning = np.asarray(returning, dtype=np.int64)

    def result(self, number: int, slot: int) -> int:
        """The right result on one device: the sum of what the callbacks return, as an int32."""
        codes = base_code(number, slot) + self._returning
        total = int((codes ^ RESULT_MARK).sum()) & 0xFFFFFFFF
        return total - (1 << 32) if total >= 1 << 31 else total

    @property
    def all_ordered(self) -> bool:
        return all(CALLBACKS[step.kind].ordered for step in self.steps.values())

    def failing_places(self, taps: bool) -> list[int]:
        """The steps at which a callback may raise: taps, or callbacks whose failure ends the computation."""
        return [
            place
            for place, step in self.steps.items()
            if step.kind in FAILING and step.kind.startswith("id_tap") is taps
        ]


def _steps(spec: ProgramSpec, trips: int) -> list[tuple[int, Step]]:
    steps = []
    for trip in range(trips):
        start = trip * spec.stride
        if spec.form == WHILE_CONDITION:
            steps.append((start, Step(CONDITION_KIND, len(spec.kinds))))
            start += 1
        steps += [
            (start + site, Step(_kind(spec, trip, site), _site(spec, trip, site))) for site in range(len(spec.kinds))
        ]
    if spec.form == WHILE_CONDITION:
        steps.append((trips * spec.stride, Step(CONDITION_KIND, len(spec.kinds))))
    return steps


def _kind(spec: ProgramSpec, trip: int, site: int) -> str:
    return spec.kinds[_site(spec, trip, site)]


def _site(spec: ProgramSpec, trip: int, site: int) -> int:
    """In odd rounds the other branch of a `cond` calls back, with the kinds in reverse."""
    return len(spec.kinds) - 1 - site if spec.form == BRANCHES and trip % 2 else site
