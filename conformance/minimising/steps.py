"""The steps from a cell to simpler cells: its program, its data, its devices, its placement and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..planning.cells import CaseCell, Cell, ProgramCell, TableCell, UnknownCellError, parse_cell
from ..spec.data import PLAIN, DataKind
from ..spec.topology import DEFAULT, Topology
from .failures import Step

SIMPLER_TRANSFORMS = {
    "eager": (),
    "jit": ("eager",),
    "grad": ("jit", "jvp"),
    "fori": ("jit", "scan"),
    "while_body": ("jit", "scan", "fori"),
    "while_cond": ("jit", "scan", "fori", "while_body"),
    "custom_vjp": ("jit", "custom_jvp"),
    "shard_map": ("jit", "pmap"),
}
"""What may stand in the place of a transform, the simplest first: `jit`, if nothing else. No row of them leads back."""

SIMPLER_PLACEMENTS = {
    "last": ("all",),
    "grid": ("all",),
    "part": ("all",),
    "part_grid": ("all", "grid", "part"),
}

DEVICE_COUNTS = (1, 2, 4)


def simpler(cell: Cell) -> Iterator[Step[Cell]]:
    """The cells that are one step simpler and have a meaning, those that leave out most first."""
    given = {cell.id}
    for step, cell_id in _steps(cell):
        if cell_id in given:
            continue
        given.add(cell_id)
        try:
            found = parse_cell(cell_id)
        except UnknownCellError:
            continue
        if (
            not isinstance(found, CaseCell)
            or found.case.ineligible(found.topology.device_count, found.topology.processes) is None
        ):
            yield step, found


def _steps(cell: Cell) -> Iterator[tuple[str, str]]:
    """The ids of simpler cells; some of them may mean nothing."""
    if isinstance(cell, TableCell):
        for program in cell.programs:
            yield f"only the program {program.program.name} of the entry", program.id
    if isinstance(cell, ProgramCell):
        for step, names in _compositions(cell.program.names):
            yield step, replace(cell, program=replace(cell.program, names=names)).id
        for data in _data(cell.data):
            yield f"data {data.name} in place of {cell.data.name}", replace(cell, data=data).id
        for placement in SIMPLER_PLACEMENTS.get(cell.placement, ()):
            yield f"placement {placement} in place of {cell.placement}", replace(cell, placement=placement).id
        if cell.configuration != DEFAULT:
            yield f"without {cell.configuration}", replace(cell, configuration=DEFAULT).id
    for topology in _topologies(cell.topology):
        yield f"on {topology.name}", replace(cell, topology=topology).id


def _compositions(names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if len(names) > 2:
        for name in names:
            yield f"only {name}", (name,)
    if len(names) > 1:
        for place, name in enumerate(names):
            yield f"without {name}", (*names[:place], *names[place + 1 :])
    for place, name in enumerate(names):
        for other in SIMPLER_TRANSFORMS.get(name, ("jit",)):
            yield f"{other} in place of {name}", (*names[:place], other, *names[place + 1 :])


def _data(data: DataKind) -> Iterator[DataKind]:
    if data.plain:
        return
    yield PLAIN
    yield replace(data, structure=PLAIN.structure)
    yield replace(data, shape=PLAIN.shape)
    yield replace(data, element=PLAIN.element)


def _topologies(topology: Topology) -> Iterator[Topology]:
    if topology.processes > 1:
        yield replace(topology, processes=1)
        yield replace(topology, processes=2, device_count=2)
        return
    for count in DEVICE_COUNTS:
        if count < topology.device_count:
            yield replace(topology, device_count=count)
    if topology.configuration != DEFAULT:
        yield replace(topology, configuration=DEFAULT)
