"""What each thread of a soak does, in which order: drawn from the seed and the thread's number alone.

Nothing here depends on time, so the same seed gives the same plan; how far a run comes in it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

from .shapes import (
    BRANCHES,
    CALLBACKS,
    DEVICE_INDEX,
    EAGER,
    FORI,
    MESH,
    ONE_DEVICE,
    PMAP,
    SCAN,
    SHARD_MAP,
    STRAIGHT,
    WHILE,
    WHILE_CONDITION,
    ProgramSpec,
)

Choice = TypeVar("Choice")

SIZES = (1, 17, 1000, 16_384, 16_400, 262_144, 300_000, 1 << 20)
"""Elements of arrays, up to 4 MiB of float32; on both sides of hostcb's 64 KiB and 1 MiB."""

LARGE = 100_000
DTYPES = ("float32", "int8", "bfloat16", "uint16", "complex64", "bool")

UNSPREAD_STEPS, SPREAD_STEPS, LARGE_STEPS = 900, 120, 6
"""The most steps of a run: on one device, on each of several, and with large arrays."""


class Special(Enum):
    """What a run has beside callbacks that return."""

    NONE = "none"
    TAP_RAISES = "a tap raises"
    CALL_RAISES = "a call raises"
    SLOW = "a callback waits a moment"
    NESTED = "a callback runs a program"


class Deed(Enum):
    RUN = "run"
    NEW_PROGRAM = "new program"
    BARRIER = "barrier"
    EFFECTS_BARRIER = "jax.effects_barrier"
    COLLECT = "gc.collect"
    CLEAR_CACHES = "jax.clear_caches"
    TRACE = "trace"


@dataclass(frozen=True)
class Act:
    """One thing that a thread does."""

    deed: Deed
    program: int = 0
    """Which of the thread's programs; with `NEW_PROGRAM`, whose place the new one takes."""
    spec: ProgramSpec | None = None
    """The new program, or what runs outside of jit."""
    trips: int = 0
    """For `while_loop`, whose rounds are an operand."""
    times: int = 1
    """How often it is dispatched before a result is fetched."""
    special: Special = Special.NONE
    chance: float = 0.0
    """Where something special happens, as a part of the steps; and how long a moment is."""
    keeps: bool = False
    """Whether the results are fetched later, after other acts."""


_DEEDS = {
    Deed.RUN: 80.0,
    Deed.NEW_PROGRAM: 1.0,
    Deed.BARRIER: 8.0,
    Deed.EFFECTS_BARRIER: 3.0,
    Deed.COLLECT: 2.0,
    Deed.CLEAR_CACHES: 0.3,
    Deed.TRACE: 0.5,
}

_SPECIALS = {
    Special.NONE: 82.0,
    Special.TAP_RAISES: 5.0,
    Special.CALL_RAISES: 4.0,
    Special.SLOW: 3.0,
    Special.NESTED: 6.0,
}

_LAYOUTS = {ONE_DEVICE: 50.0, PMAP: 14.0, SHARD_MAP: 14.0, MESH: 12.0, EAGER: 10.0}
_FORMS = {STRAIGHT: 1.0, SCAN: 3.0, FORI: 3.0, WHILE: 3.0, WHILE_CONDITION: 1.0, BRANCHES: 1.0}


def rounds_of(seed: int, thread: int, devices: int, programs: int, acts: int) -> Iterator[list[Act]]:
    """The endless plan of one thread. Each round begins with new programs, and they are dropped at its end."""
    random = Random(f"{seed}-{thread}")
    while True:
        made = [Act(Deed.NEW_PROGRAM, place, drawn_program(random, devices)) for place in range(programs)]
        yield made + [_act(random, devices, programs) for _ in range(acts)]


def _act(random: Random, devices: int, programs: int) -> Act:
    deed = _one(random, _DEEDS)
    place = random.randrange(programs)
    if deed is Deed.NEW_PROGRAM:
        return Act(deed, place, drawn_program(random, devices))
    if deed is not Deed.RUN:
        return Act(deed, place)
    outside = random.random() < _LAYOUTS[EAGER] / sum(_LAYOUTS.values())
    return Act(
        deed,
        place,
        _drawn_eager(random, devices) if outside else None,
        trips=random.randrange(0, 8) if random.random() < 0.3 else random.randrange(8, 300),
        times=random.choice((1, 1, 1, 2, 5)),
        special=_one(random, _SPECIALS),
        chance=random.random(),
        keeps=random.random() < 0.3,
    )


def drawn_program(random: Random, devices: int) -> ProgramSpec:
    """A program of any layout inside jit."""
    layouts = {
        name: weight for name, weight in _LAYOUTS.items() if name != EAGER and (devices > 1 or name == ONE_DEVICE)
    }
    layout = _one(random, layouts)
    form = _one(random, _FORMS)
    eligible = [name for name, one in CALLBACKS.items() if layout != MESH or not one.on_every_device]
    # Taps are the most common callbacks, and the fastest.
    kinds = tuple(random.choice(("id_tap", random.choice(eligible))) for _ in range(random.randrange(1, 5)))
    size = random.choice(SIZES) if random.random() < 0.3 and any(not CALLBACKS[name].prints for name in kinds) else 0
    most = SPREAD_STEPS if layout in (PMAP, SHARD_MAP) else UNSPREAD_STEPS
    most = LARGE_STEPS if size >= LARGE else most
    trips = 1 if form == STRAIGHT else max(1, random.randrange(most // 4, most) // (len(kinds) + 1))
    device = random.randrange(devices)
    if layout == MESH and not DEVICE_INDEX.issuperset(kinds):
        # The others take the first device of the mesh, and one order is of one device.
        device = 0
    return ProgramSpec(layout, form, kinds, trips, size, random.choice(DTYPES), device)


def drawn_nested(random: Random, devices: int) -> ProgramSpec:
    """A small program on one device, which callbacks run."""
    kinds = tuple(random.choice(("id_tap", "call", "pure_callback", "io_callback_ordered")) for _ in range(2))
    return ProgramSpec(ONE_DEVICE, FORI, kinds, 3, random.choice((0, 17)), "float32", random.randrange(devices))


def _drawn_eager(random: Random, devices: int) -> ProgramSpec:
    kind = random.choice(("call", "io_callback_ordered", *["id_tap"] * 4))
    return ProgramSpec(EAGER, STRAIGHT, (kind,), 1, 0, "float32", random.randrange(devices))


def _one(random: Random, weights: dict[Choice, float]) -> Choice:
    (chosen,) = random.choices(list(weights), list(weights.values()))
    return chosen
