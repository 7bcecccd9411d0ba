"""The cells of a campaign: all faults, the table, and programs of every callback, transform, platform and process."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from conformance.engine.run import task_of
from conformance.engine.tasks import Task
from conformance.expectations.entries import EXPECTATIONS, load_expectations
from conformance.planning.cells import Cell, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.depths import at_depth
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.planning.selection import plan_of, undrawn_plan_of
from conformance.planning.smoke import smoke
from conformance.spec.depths import Depth

LOWERED = ("cuda", "tpu", "rocm", "oneapi")
"""The platforms whose transports no program of a CPU has: programs are lowered for them, and judged."""

DRAWN = 240
"""Programs of a CPU beside those of the smoke run."""

LOWERED_OF_EACH = 40
OF_PROCESSES = 24
DEADLINE = 60.0


def cells_of_pool(jax_version: str, seed: int = 0) -> list[Task]:
    """The same cells for the same seed, without those that the platform's known failures are about."""
    draw = random.Random(seed)
    plan = plan_of(["hostcb"], "cpu", (1, 2, 4, 8))
    cells: dict[str, Cell] = {cell.id: cell for cell in smoke(plan).cells}
    cells |= {cell.id: cell for cell in plan.cells if not isinstance(cell, ProgramCell)}
    programs = [cell for cell in plan.cells if isinstance(cell, ProgramCell) and cell.id not in cells]
    cells |= {cell.id: cell for cell in _drawn(programs, DRAWN, draw)}
    processes = plan_over_processes(["hostcb"], [USUAL]).on_this_release().cells
    cells |= {cell.id: cell for cell in _drawn(processes, OF_PROCESSES, draw)}
    for platform in LOWERED:
        lowered = at_depth(undrawn_plan_of(["hostcb"], platform, (1, 4)).on_this_release(), Depth.LOWER).cells
        cells |= {cell.id: cell for cell in _drawn(lowered, LOWERED_OF_EACH, draw)}
    known = load_expectations(EXPECTATIONS / "cpu.toml").applicable(jax_version)
    return [task_of(cell, DEADLINE) for cell in cells.values() if known.of(cell.id) is None]


def named(cells: Iterable[str]) -> dict[str, Task]:
    """The tasks of cells with these ids."""
    return {cell: task_of(parse_cell(cell), DEADLINE) for cell in cells}


def exists(cell: str) -> bool:
    """Whether the suite still has this cell, and this release of JAX can run it."""
    try:
        parse_cell(cell)
    except UnknownCellError:
        return False
    return True


def _drawn(cells: Sequence[Cell], count: int, draw: random.Random) -> list[Cell]:
    """As many, of each callback about as many as of any other."""
    by_callback: dict[str, list[Cell]] = {}
    for cell in cells:
        by_callback.setdefault(cell.callback_name, []).append(cell)
    for each in by_callback.values():
        draw.shuffle(each)
    found: list[Cell] = []
    while len(found) < count and any(by_callback.values()):
        found += [each.pop() for each in by_callback.values() if each]
    return found[:count]
