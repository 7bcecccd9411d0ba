"""A plan at a depth at which nothing runs: the cells that it has there, and why it has not the others."""

from __future__ import annotations

from dataclasses import replace

import jax

from ..model.programs import Program
from ..spec.configurations import JIT_DISABLED
from ..spec.depths import Depth
from ..spec.platform_targets import MULTI_HOST, TARGETS
from ..spec.topology import CPU_CONFIGURATIONS, Topology
from ..spec.versions import version_matches
from .cells import CaseCell, Cell, Ineligible, Plan, ProgramCell, TableCell
from .jax_limits import limit_of_devices, limit_of_program

OVER_DEVICES = frozenset({"pmap", "pjit", "shard_map"})

DEVICE_COUNTS = (1, 4)
"""The numbers of devices for which programs are lowered or compiled, unless the user names others."""


def spans_devices(program: Program) -> bool:
    """Whether the program, compiled as a whole, is one for all devices of its cell."""
    return bool(OVER_DEVICES & set(program.names))


def at_depth(plan: Plan, depth: Depth) -> Plan:
    """The cells of a plan at another depth; those that show nothing there are ineligible, each with the reason."""
    if depth is Depth.RUN:
        return plan
    smallest = {_on_one(cell) for cell in plan.cells if cell.topology.device_count == 1}
    larger = {_on_one(cell) for cell in plan.cells if cell.topology.device_count > 1}
    cells: dict[str, Cell] = {}
    left_out = [Ineligible(f"{one.id}@{depth.value}", one.reason) for one in plan.ineligible]
    for cell in plan.cells:
        moved = moved_to(cell, depth)
        reason = why_not_at_depth(moved) or _same_as_on_one(cell, smallest) or _less_than_on_several(cell, larger)
        if reason:
            left_out.append(Ineligible(moved.id, reason))
        else:
            cells.setdefault(moved.id, moved)
    return Plan(tuple(cells.values()), tuple(left_out), tuple(moved_to(cell, depth) for cell in plan.lacking))


def all_at_depth(plan: Plan, depth: Depth) -> Plan:
    """All cells of a plan at another depth, also those that show nothing there: a user may name them."""
    return plan if depth is Depth.RUN else Plan(tuple(moved_to(cell, depth) for cell in plan.cells), ())


def moved_to(cell: Cell, depth: Depth) -> Cell:
    return replace(cell, topology=replace(cell.topology, depth=depth))


def why_not_at_depth(cell: Cell) -> str | None:
    """The reason if a cell has no meaning at its depth; otherwise None."""
    depth = cell.topology.depth
    if depth is Depth.RUN:
        return None
    if isinstance(cell, CaseCell):
        return f"nothing runs at depth {depth.value}, and a case shows only in what runs"
    target = TARGETS.get(cell.topology.platform)
    if target and cell.implementation == "jax" and not version_matches(jax.__version__, target.jax):
        return f"JAX {jax.__version__} lowers no callbacks of its own for {target.name}"
    if isinstance(cell, TableCell):
        return None
    if "eager" in cell.program.names or cell.configuration == JIT_DISABLED:
        return f"without jit there is no program to {depth.value}"
    if "pmap" in cell.program.names and cell.topology.processes > 1:
        return "pmap compiles for the devices of its own process, and here one process has all"
    if cell.topology.configuration in CPU_CONFIGURATIONS:
        return f"{cell.topology.configuration} is about how a CPU runs programs"
    return None


def _same_as_on_one(cell: Cell, smallest: set[tuple[object, ...]]) -> str | None:
    if not isinstance(cell, ProgramCell) or cell.topology.device_count == 1 or spans_devices(cell.program):
        return None
    if _on_one(cell) not in smallest:
        return None
    return "the program is for one device, and the cell on one device has the same"


def _less_than_on_several(cell: Cell, larger: set[tuple[object, ...]]) -> str | None:
    if not isinstance(cell, ProgramCell) or cell.topology.device_count > 1 or len(cell.program.names) == 1:
        return None
    if not spans_devices(cell.program) or _on_one(cell) not in larger:
        return None
    return "the cell on several devices has the same composition over devices"


def _on_one(cell: Cell) -> tuple[object, ...]:
    """All of a cell but its devices."""
    if not isinstance(cell, ProgramCell):
        return (cell.id,)
    return cell.implementation, cell.callback.name, cell.program.name, cell.data.name, cell.configuration


def multi_host_cells(plan: Plan, platform: str) -> tuple[Cell, ...]:
    """Each callback in each program over devices, on a topology of several hosts, which one compiler compiles for."""
    if platform not in MULTI_HOST:
        return ()
    processes, devices = MULTI_HOST[platform]
    topology = Topology(platform, devices, processes=processes, depth=Depth.COMPILE)
    return tuple(
        replace(cell, topology=topology)
        for cell in plan.cells
        if isinstance(cell, ProgramCell) and len(cell.program.names) == 1 and "+" not in cell.id
        if cell.topology.device_count > 1 and spans_devices(cell.program) and "pmap" not in cell.program.names
        if cell.implementation != "jax" or not _limited(cell, devices)
    )


def _limited(cell: ProgramCell, devices: int) -> bool:
    """Whether JAX's own callback is known to fail there."""
    names = cell.program.names
    return bool(limit_of_devices(cell.callback, names, devices) or limit_of_program(cell.callback, names))
