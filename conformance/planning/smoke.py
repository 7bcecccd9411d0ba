"""The smallest useful run: each callback, each transform, each value of each axis once."""

from __future__ import annotations

from ..spec.depths import Depth
from ..spec.topology import DEFAULT
from .cells import CaseCell, Cell, Plan, ProgramCell
from .selection import row_of

CASES = (
    "id_tap/case.tap_raises.jit",
    "call/case.raises.jit",
    "io_callback/case.raises.jit",
)
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
    cases = [cell for cell in plan.cells if isinstance(cell, CaseCell) and _name(cell) in CASES]
    return Plan((*chosen.values(), *cases), ())


def _shows(cell: ProgramCell) -> set[tuple[str, ...]]:
    """The values that the smoke run must have once for each implementation."""
    row = row_of(cell)
    if row is None:
        return set()
    of_transforms = {(cell.implementation, "transform", name) for name in cell.program.names}
    of_others = {(cell.implementation, str(axis), value) for axis, value in enumerate(row) if axis not in (1, 2)}
    return of_transforms | of_others


def _name(cell: CaseCell) -> str:
    return f"{cell.case.callback}/{cell.case.name}"
