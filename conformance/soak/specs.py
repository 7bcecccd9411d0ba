"""The programs of a soak, and what each of them calls back, step by step. No JAX: this side draws and predicts.

The operand of each callback is a code, an `int32`: which run of a program, which device of it, which step. The number
of a run comes again only after 262,144 others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

import numpy as np

from ..spec.callbacks import Callback
from ..spec.external_callbacks import callback_named

STEPS, SLOTS = 1 << 10, 1 << 3
"""The most steps that a run has on one device, and the most devices."""
NUMBERS = (1 << 31) // (STEPS * SLOTS)

RESULT_MARK = 0x5A5A
"""A callback with a result returns its code with these bits flipped."""
SMALL = 127
"""The data beside a code repeat its last seven bits, which every element type holds exactly."""

CALLBACKS: Mapping[str, Callback] = {
    name: callback_named(name)
    for name in (
        *("id_tap", "id_tap_device", "id_print", "call", "io_callback", "io_callback_ordered", "pure_callback"),
        *("debug_callback", "debug_callback_ordered", "debug_print", "debug_print_ordered"),
        *("buffer_callback", "buffer_callback_side_effect", "dlpack_callback", "dlpack_callback_side_effect"),
    )
}
FAILING = ("id_tap", "id_tap_device", "call", "io_callback_ordered", "debug_callback_ordered")
"""Kinds that the soak lets raise."""
CONDITION_KIND = "id_tap"
"""The kind of callback in the condition of a `while_loop`."""


def base_code(number: int, slot: int) -> int:
    """The code of a run's first step on its device number `slot`."""
    return (number % NUMBERS * SLOTS + slot) * STEPS


def parts_of(code: int) -> tuple[int, int, int]:
    """The number of the run, the slot and the step."""
    return code // (STEPS * SLOTS), code // STEPS % SLOTS, code % STEPS


def names_its_device(kind: str) -> bool:
    """Whether it takes the number of the device of a mesh that calls back; others take the first device."""
    return CALLBACKS[kind].function in ("id_tap", "id_print", "call")


class Layout(Enum):
    ONE_DEVICE = "jit on one device"
    PMAP = "pmap"
    SHARD_MAP = "shard_map"
    MESH = "jit over a mesh"
    EAGER = "outside jit"


class Form(Enum):
    STRAIGHT = "straight"
    SCAN = "scan"
    WHILE = "while_loop"
    WHILE_CONDITION = "while_loop with a condition that calls back"
    BRANCHES = "cond in a scan"


@dataclass(frozen=True)
class ProgramSpec:
    """A program: equal ones are compiled from equal source."""

    layout: Layout
    form: Form
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
        return self.layout in (Layout.PMAP, Layout.SHARD_MAP)

    def __str__(self) -> str:
        data = f" with {self.dtype}[{self.size}]" if self.size else ""
        where = "" if self.spread else f" of device {self.device}"
        return f"{self.layout.value}{where}, {self.form.value} of {self.trips}: {', '.join(self.kinds)}{data}"


@dataclass(frozen=True)
class Step:
    callback: Callback
    place: int
    """In the source of one round. The condition of a loop is the place after all others."""

    @property
    def site(self) -> str:
        """What the host function knows of it: a text that is printed has no place."""
        return "print" if self.callback.prints else f"place {self.place}"


class Shape:
    """The steps of one run of a program, on each of its devices."""

    def __init__(self, spec: ProgramSpec, trips: int) -> None:
        self.spec, self.trips = spec, trips
        steps = [Step(CALLBACKS[kind], place) for place, kind in enumerate(spec.kinds)]
        condition = [Step(CALLBACKS[CONDITION_KIND], len(spec.kinds))] * (spec.form == Form.WHILE_CONDITION)
        # In odd rounds the other branch of a `cond` calls back, with the kinds in reverse.
        turns = [steps, steps[::-1] if spec.form == Form.BRANCHES else steps]
        rounds = (step for trip in range(trips) for step in (*condition, *turns[trip % 2]))
        self.steps = (*rounds, *condition)
        self._returning = [place for place, step in enumerate(self.steps) if step.callback.returns_new_value]

    def result(self, number: int, slot: int) -> int:
        """The right result on one device: the sum of what the callbacks return, as an int32."""
        codes = base_code(number, slot) + np.asarray(self._returning, np.int64)
        return int((codes ^ RESULT_MARK).sum().astype(np.int32))

    def failing_steps(self, *, taps: bool) -> list[int]:
        """The steps at which a callback may raise: taps, or else callbacks whose failure ends the computation.

        After such an end ordered callbacks do not run. Others may, or may not, so a program that has some has no step
        at which it may end.
        """
        if not taps and not all(step.callback.ordered for step in self.steps):
            return []
        kinds = [kind for kind in FAILING if kind.startswith("id_tap") is taps]
        return [place for place, step in enumerate(self.steps) if step.callback.name in kinds]


SIZES = (1, 17, 1000, 16_384, 16_400, 262_144, 300_000, 1 << 20)
"""Elements of arrays, up to 4 MiB of float32; on both sides of hostcb's 64 KiB and 1 MiB."""
LARGE = 100_000
DTYPES = ("float32", "int8", "bfloat16", "uint16", "complex64", "bool")
UNSPREAD_STEPS, SPREAD_STEPS, LARGE_STEPS = 900, 120, 6
"""The most steps of a run: on one device, on each of several, and with large arrays."""
_LAYOUTS = {Layout.ONE_DEVICE: 50.0, Layout.PMAP: 14.0, Layout.SHARD_MAP: 14.0, Layout.MESH: 12.0}
_FORMS = dict(zip(Form, (1.0, 6.0, 3.0, 1.0, 1.0), strict=True))


def drawn_program(random: Random, devices: int) -> ProgramSpec:
    """A program of any layout inside jit."""
    layout = drawn(random, _LAYOUTS) if devices > 1 else Layout.ONE_DEVICE
    form = drawn(random, _FORMS)
    eligible = [name for name, one in CALLBACKS.items() if layout != Layout.MESH or not one.on_every_device]
    # Taps are the most common callbacks, and the fastest.
    kinds = tuple(random.choice(("id_tap", random.choice(eligible))) for _ in range(random.randrange(1, 5)))
    size = random.choice(SIZES) if random.random() < 0.3 and any(not CALLBACKS[name].prints for name in kinds) else 0
    most = SPREAD_STEPS if layout in (Layout.PMAP, Layout.SHARD_MAP) else UNSPREAD_STEPS
    most = LARGE_STEPS if size >= LARGE else most
    trips = 1 if form == Form.STRAIGHT else max(1, random.randrange(most // 4, most) // (len(kinds) + 1))
    # Over a mesh one order is of one device.
    named = layout != Layout.MESH or all(map(names_its_device, kinds))
    device = random.randrange(devices) if named else 0
    return ProgramSpec(layout, form, kinds, trips, size, random.choice(DTYPES), device)


def drawn_nested(random: Random, devices: int) -> ProgramSpec:
    """A small program on one device, which callbacks run."""
    kinds = tuple(random.choice(("id_tap", "call", "pure_callback", "io_callback_ordered")) for _ in range(2))
    return ProgramSpec(Layout.ONE_DEVICE, Form.SCAN, kinds, 3, random.choice((0, 17)), device=random.randrange(devices))


def drawn_eager(random: Random, devices: int) -> ProgramSpec:
    kind = random.choice(("call", "io_callback_ordered", *["id_tap"] * 4))
    return ProgramSpec(Layout.EAGER, Form.STRAIGHT, (kind,), 1, device=random.randrange(devices))


def drawn(random: Random, weights: Mapping[Any, float]) -> Any:
    return random.choices(list(weights), list(weights.values()))[0]
