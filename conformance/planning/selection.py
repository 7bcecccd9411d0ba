"""Selects the cells of a run from the product of all axes; docs/extending.md describes the rules."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from ..implementations import callbacks_asked_of, callbacks_drawn_for
from ..model.programs import DOCUMENTED_TRIPLES, Program
from ..model.transforms import TRANSFORMS
from ..spec.callbacks import Callback
from ..spec.configurations import CONTEXTS, X64
from ..spec.data import EXACT, PLAIN, DataKind
from ..spec.depths import Depth
from ..spec.external_callbacks import ALL_CALLBACKS, callback_named
from ..spec.topology import CPU_CONFIGURATIONS, DEFAULT, Topology
from .axes import AXES, NONE, program_of, space_of
from .cells import CaseCell, Cell, Plan, ProgramCell, make_whole_plan, parse_cell
from .covering import Covering, Pair, Row, cover, pairs_of
from .eligibility import ineligible
from .jax_limits import SHOWN_BY, limit_of_devices, limit_of_program
from .sampling import ONLY_BATCHED

CALLBACK, INNER = AXES.index("callback"), AXES.index("inner")
OF_OPERANDS = frozenset(map(AXES.index, ("element", "shape", "structure")))
"""The axes in which callbacks do not differ that hand over operands in the same way."""
HANDS_OVER = attrgetter(
    "function", "ordered", "returns_new_value", "device_choice", "partitioned", "aliased", "in_place"
)
"""The fields of a callback that decide how operands and results cross."""

CPU_DEVICE_COUNTS = (1, 2, 4, 8)

SAMPLES = {3: 16, 4: 8}
"""The number of drawn compositions, by the number of their transforms."""

FULL_SAMPLES = {3: 400, 4: 240}

EVERYWHERE = "id_tap"
"""Every drawn composition is tried with this callback, which refuses no transform."""


@dataclass(frozen=True)
class Choice:
    """The amount of the selection, and its seed."""

    seed: int = 0
    full: bool = False


def plan_of(
    implementations: Sequence[str], platform: str, device_counts: Sequence[int], choice: Choice = Choice()
) -> Plan:
    """The cells of `whole_plan_of` that the installed release has."""
    return whole_plan_of(implementations, platform, device_counts, choice).on_this_release()


def whole_plan_of(
    implementations: Sequence[str], platform: str, device_counts: Sequence[int], choice: Choice = Choice()
) -> Plan:
    """The cells for every release in a fixed order: the planned programs, the covering rows, the drawn compositions."""
    plan = make_whole_plan(implementations, _ends(platform, device_counts), sampled=not choice.full)
    further: list[Cell] = []
    for implementation in implementations:
        rows = covering_of(implementation, platform, tuple(device_counts), choice).rows
        further += [cell_of(implementation, platform, row) for row in rows]
        further += drawn(implementation, platform, device_counts, choice)
        further += _undrawn(implementation, platform, device_counts)
        if choice.full:
            further += every_data(implementation, platform, max(device_counts))
    return plan.with_(Plan(tuple(further), ()))


def undrawn_plan_of(implementations: Sequence[str], platform: str, device_counts: Sequence[int]) -> Plan:
    """The part of `whole_plan_of` that is not drawn: to draw the rest takes seconds."""
    plan = make_whole_plan(implementations, _ends(platform, device_counts))
    further = [cell for implementation in implementations for cell in _undrawn(implementation, platform, device_counts)]
    return plan.with_(Plan(tuple(further), ()))


def _ends(platform: str, device_counts: Sequence[int]) -> list[Topology]:
    """The topologies with the fewest and with the most devices."""
    return [Topology(platform, count) for count in sorted({min(device_counts), max(device_counts)})]


def _undrawn(implementation: str, platform: str, device_counts: Sequence[int]) -> Iterator[Cell]:
    """The cells that are neither planned programs nor drawn; the first ones show what covering rows avoid."""
    available = [Topology(platform, count) for count in device_counts]
    for cell in (parse_cell(cell_id, any_release=True) for cell_id in SHOWN_BY):
        if cell.implementation == implementation and cell.topology in available:
            yield cell
    yield from _of_each(implementation, platform, device_counts)


def _of_each(implementation: str, platform: str, device_counts: Sequence[int]) -> Iterator[Cell]:
    """What each callback must have, whatever rows are drawn, on as many devices as it can."""
    counts = sorted(device_counts, reverse=True)
    space = space_of(implementation, platform, counts)
    for callback in callbacks_drawn_for(implementation):
        for count, outer in itertools.product(counts, ("jit", "pjit")):
            row = (callback.name, outer, NONE, "all", str(count), DEFAULT, EXACT.element, EXACT.shape, EXACT.structure)
            if space.reason(row) is None:
                cell = cell_of(implementation, platform, row)
                yield cell
                if callback.linear:
                    names = ("grad", "custom_jvp") if outer == "jit" else (outer, "grad", "custom_jvp")
                    yield replace(cell, program=Program(names), data=PLAIN)
                break


@functools.cache
def covering_of(implementation: str, platform: str, device_counts: tuple[int, ...], choice: Choice) -> Covering:
    """The rows that cover, with the planned programs, every pair of values of two axes."""
    planned = make_whole_plan([implementation], _ends(platform, device_counts))
    present = map(pairs_in, planned.cells)
    return cover(space_of(implementation, platform, device_counts, choice.full), present, choice.seed, shown_by)


def pairs_in(cell: Cell) -> list[Pair]:
    row = row_of(cell)
    return [] if row is None else shown_by(row)


def shown_by(row: Row) -> list[Pair]:
    """The pairs of a row, and those that it shows of further callbacks, since they do not differ in them."""
    callback, outer, inner, *_ = row
    pairs = pairs_of(row)
    if inner == NONE:
        # A transform alone is the outermost one, and the one next to the callback.
        pairs.append((CALLBACK, callback, INNER, outer))
    of_callback = [(axis, value) for a, _, axis, value in pairs if a == CALLBACK]
    for other, axes in _alike(callback, "vmap" in (outer, inner)):
        pairs += [(CALLBACK, other, axis, value) for axis, value in of_callback if axis in axes]
    return pairs


@functools.cache
def _alike(name: str, batched: bool) -> tuple[tuple[str, frozenset[int]], ...]:
    """The callbacks that do not differ from this one in some axes, and these axes."""
    own, every_axis = HANDS_OVER(callback_named(name)), frozenset(range(len(AXES)))
    # A mixture has several ways, so it stands for no other callback.
    others = (one for one in ALL_CALLBACKS if one.name != name and not one.parts)
    found = {one.name: OF_OPERANDS for one in others if HANDS_OVER(one) == own}
    if not batched:
        found |= dict.fromkeys(ONLY_BATCHED.get(name, ()), every_axis)
    return tuple(found.items())


def row_of(cell: Cell) -> Row | None:
    """The cell as a row of the covering array; None for a cell that is not a row."""
    if not isinstance(cell, ProgramCell) or len(cell.program.names) > 2:
        return None
    outer, inner = (*cell.program.names, NONE)[:2]
    own = cell.topology.configuration
    configuration = cell.configuration if own == DEFAULT else own
    where = (cell.placement, str(cell.topology.device_count), configuration)
    return cell.callback.name, outer, inner, *where, cell.data.element, cell.data.shape, cell.data.structure


def cell_of(implementation: str, platform: str, row: Row) -> ProgramCell:
    callback, outer, inner, placement, devices, configuration, *data = row
    return ProgramCell(
        implementation,
        next(one for one in callbacks_asked_of(implementation) if one.name == callback),
        program_of(outer, inner),
        Topology(platform, int(devices), configuration if configuration in CPU_CONFIGURATIONS else DEFAULT),
        DataKind(*data),
        placement,
        configuration if configuration in CONTEXTS else DEFAULT,
    )


def drawn(implementation: str, platform: str, device_counts: Sequence[int], choice: Choice) -> Iterator[ProgramCell]:
    """Compositions of three and four transforms, each with the callback that refuses no transform and with another."""
    callbacks = callbacks_drawn_for(implementation)
    for length, number in (FULL_SAMPLES if choice.full else SAMPLES).items():
        for place, names in enumerate(compositions(length, number, choice.seed)):
            program = Program(names)
            topology = Topology(platform, device_counts[place % len(device_counts)])
            able = [one for one in callbacks if implementation != "jax" or _within_limits(one, program, topology)]
            for callback in (*_named(able, EVERYWHERE), *_next(able, program, place + choice.seed)):
                yield ProgramCell(implementation, callback, program, topology)


def _within_limits(callback: Callback, program: Program, topology: Topology) -> bool:
    names, count = program.names, topology.device_count
    return limit_of_program(callback, names) is None and limit_of_devices(callback, names, count) is None


def _named(callbacks: Sequence[Callback], name: str) -> list[Callback]:
    return [callback for callback in callbacks if callback.name == name]


def _next(callbacks: Sequence[Callback], program: Program, place: int) -> list[Callback]:
    """The first callback from this place on that is eligible in the program."""
    others = [callback for callback in callbacks if callback.name != EVERYWHERE and not callback.parts]
    turned = others[place % len(others) :] + others[: place % len(others)]
    return [callback for callback in turned if not ineligible(callback, program, 1)][:1]


@functools.cache
def compositions(length: int, number: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Different eligible compositions, with all transforms about equally often in every place."""
    randomness = random.Random(f"{seed}/{length}")
    names = [name for name in TRANSFORMS if name != "eager"]
    chosen: dict[tuple[str, ...], None] = {}
    while len(chosen) < number:
        columns = [randomness.sample(names, len(names)) for _ in range(length)]
        for composition in zip(*columns, strict=True):
            if composition not in DOCUMENTED_TRIPLES and why_not(composition) is None and len(chosen) < number:
                chosen[composition] = None
    return tuple(chosen)


def why_not(names: tuple[str, ...]) -> str | None:
    """The reason if a composition has no meaning or is not exact; otherwise None."""
    program = Program(names)
    (anything,) = _named(callbacks_asked_of("hostcb"), EVERYWHERE)
    if reason := ineligible(anything, program, 1):
        return reason
    return None if program.exact else "its numbers may be too large to be exact in float32"


def every_data(implementation: str, platform: str, devices: int) -> Iterator[ProgramCell]:
    """Every callback with every pair of an element type, a shape and a structure, in one small program each."""
    space = space_of(implementation, platform, (devices,), full=True)
    values = dict(zip(space.names, space.values, strict=True))
    for callback in values["callback"]:
        outer = "pjit" if space.reason([callback, "jit", NONE, *[None] * 6]) else "jit"
        for data in itertools.product(values["element"], values["shape"], values["structure"]):
            if all(
                value != values[axis][0] for value, axis in zip(data, ("element", "shape", "structure"), strict=True)
            ):
                continue
            for configuration in (DEFAULT, X64):
                row = (callback, outer, NONE, "all", str(devices), configuration, *data)
                if space.reason(row) is None:
                    yield cell_of(implementation, platform, row)
                    break


CASES = ("id_tap/case.tap_raises.jit", "call/case.raises.jit", "io_callback/case.raises.jit")
"""The most basic cases, in processes of their own, a few seconds each."""


def smoke(plan: Plan) -> Plan:
    """The part of a plan for a first test of a change, on few topologies, since each worker costs seconds."""
    programs = [cell for cell in plan.cells if isinstance(cell, ProgramCell)]
    largest = max((cell.topology.device_count for cell in programs), default=0)
    # Plain cells come first: their failures are clearer than those of cells with other data or placements.
    there = [cell for cell in programs if cell.topology.configuration == DEFAULT]
    # Where nothing runs, programs for one device have cells on one device alone, and no worker costs seconds.
    there = [cell for cell in there if cell.topology.device_count == largest or cell.topology.depth is not Depth.RUN]
    there.sort(key=lambda cell: (not cell.data.plain, cell.placement != "all", len(cell.program.names)))
    there.sort(key=lambda cell: cell.topology.device_count < largest)
    chosen: dict[str, Cell] = {}
    seen: set[tuple[str, ...]] = set()
    for cell in there:
        news = _shows(cell) - seen
        if news:
            seen |= news
            chosen[cell.id] = cell
    cases = [cell for cell in plan.cells if isinstance(cell, CaseCell)]
    basic = [cell for cell in cases if f"{cell.callback_name}/{cell.case.name}" in CASES]
    return Plan((*chosen.values(), *basic), ())


def _shows(cell: ProgramCell) -> set[tuple[str, ...]]:
    """The values that the smoke run must have once for each implementation."""
    row = row_of(cell)
    if row is None:
        return set()
    of_transforms = {(cell.implementation, "transform", name) for name in cell.program.names}
    of_others = {(cell.implementation, str(axis), value) for axis, value in enumerate(row) if axis not in (1, 2)}
    return of_transforms | of_others
