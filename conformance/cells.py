"""Cells: the units of the suite, each with an id that can be run alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.callbacks import HOST_CALLBACKS, Callback
from conformance.eligibility import ineligible
from conformance.fault_catalogue import FAULTS, Fault
from conformance.implementations import callbacks_of
from conformance.programs import Program, all_programs
from conformance.sampling import left_out
from conformance.support_table import TABLE, TableEntry
from conformance.topology import Topology
from conformance.transforms import TRANSFORMS

DEVICE_PROMISES = {"H9", "H10"}


@dataclass(frozen=True)
class ProgramCell:
    """A callback in a program on a topology."""

    implementation: str
    callback: Callback
    program: Program
    topology: Topology

    isolated = False

    @property
    def id(self) -> str:
        return "/".join((self.implementation, self.callback.name, self.program.name, self.topology.name))

    @property
    def callback_name(self) -> str:
        return self.callback.name

    @property
    def promises(self) -> tuple[str, ...]:
        of_program = {*self.program.promises}
        if self.callback not in HOST_CALLBACKS:
            # What else transforms mean for these is said in their own promises.
            of_program &= DEVICE_PROMISES
            of_program |= {"H5"} if self.callback.ordered else set()
        return tuple(sorted({*self.callback.promises, *of_program}))


@dataclass(frozen=True)
class FaultCell:
    """A misbehaving callback, in a process of its own."""

    implementation: str
    fault: Fault
    topology: Topology

    isolated = True

    @property
    def id(self) -> str:
        return "/".join((self.implementation, self.fault.callback, self.fault.name, self.topology.name))

    @property
    def callback_name(self) -> str:
        return self.fault.callback

    @property
    def promises(self) -> tuple[str, ...]:
        return self.fault.promises


@dataclass(frozen=True)
class TableCell:
    """An entry of the table of what supports what."""

    implementation: str
    entry: TableEntry
    topology: Topology

    isolated = False

    @property
    def id(self) -> str:
        return "/".join((self.implementation, self.entry.row, self.entry.name, self.topology.name))

    @property
    def callback_name(self) -> str:
        return self.entry.row

    @property
    def promises(self) -> tuple[str, ...]:
        return ("X1",)

    @property
    def programs(self) -> tuple[ProgramCell, ...]:
        """The programs that show the entry."""
        (callback,) = (c for c in callbacks_of(self.implementation) if c.name == self.entry.callback)
        return tuple(
            ProgramCell(self.implementation, callback, Program(tuple(name.split("."))), self.topology)
            for name in self.entry.programs
        )


Cell: TypeAlias = ProgramCell | FaultCell | TableCell


class UnknownCellError(ValueError):
    """An id that names no cell."""


def parse_cell(cell_id: str) -> Cell:
    """The cell with this id. Any composition of transforms may be asked for, planned or not."""
    parts = cell_id.split("/")
    if len(parts) != 4:
        raise UnknownCellError(
            f"{cell_id!r} is no cell id: expected implementation/callback/program/topology,"
            " as `python -m conformance list` prints them"
        )
    implementation, callback_name, program_name, topology_name = parts
    platform, _, devices = topology_name.rpartition("-")
    if not platform or not devices.removesuffix("dev").isdigit():
        raise UnknownCellError(f"{topology_name!r} is no topology: expected one like cpu-8dev")
    topology = Topology(platform, int(devices.removesuffix("dev")))

    callback = next((c for c in callbacks_of(implementation) if c.name == callback_name), None)
    if callback is None:
        raise UnknownCellError(f"{implementation} has no callback {callback_name!r}")

    if program_name.startswith("fault."):
        for fault in FAULTS:
            if (fault.callback, fault.name) == (callback_name, program_name):
                return FaultCell(implementation, fault, topology)
        raise UnknownCellError(f"no fault {program_name!r} of {callback_name!r} is known")

    if program_name.startswith("table."):
        for entry in TABLE:
            if (entry.row, entry.name) == (callback_name, program_name):
                return TableCell(implementation, entry, topology)
        raise UnknownCellError(f"the table has no {program_name!r} of {callback_name!r}")

    names = tuple(program_name.split("."))
    if unknown := [name for name in names if name not in TRANSFORMS]:
        raise UnknownCellError(f"unknown transform {unknown[0]!r} in {cell_id!r}; there are {', '.join(TRANSFORMS)}")
    program = Program(names)
    if reason := ineligible(callback, program, topology.device_count):
        raise UnknownCellError(f"{cell_id} means nothing: {reason}")
    return ProgramCell(implementation, callback, program, topology)


@dataclass(frozen=True)
class Ineligible:
    """A cell of the product that means nothing, and why: listed, never run, never passed."""

    id: str
    reason: str


@dataclass(frozen=True)
class Plan:
    cells: tuple[Cell, ...]
    ineligible: tuple[Ineligible, ...]

    def select(self, patterns: Sequence[str]) -> Plan:
        """The part whose ids contain, or as globs match, one of the patterns."""
        if not patterns:
            return self

        def wanted(cell_id: str) -> bool:
            return any(p in cell_id or fnmatch.fnmatchcase(cell_id, p) for p in patterns)

        return Plan(
            tuple(cell for cell in self.cells if wanted(cell.id)),
            tuple(cell for cell in self.ineligible if wanted(cell.id)),
        )


def make_plan(implementations: Sequence[str], topologies: Sequence[Topology]) -> Plan:
    """Every cell there is, in a fixed order."""
    cells: list[Cell] = []
    unplanned: list[Ineligible] = []
    largest = max(topologies, key=lambda topology: topology.device_count)
    for topology in topologies:
        for implementation in implementations:
            for cell, reason in _candidates(implementation, topology, largest):
                if reason is None:
                    cells.append(cell)
                else:
                    unplanned.append(Ineligible(cell.id, reason))
    return Plan(tuple(cells), tuple(unplanned))


def _candidates(implementation: str, topology: Topology, largest: Topology) -> Iterator[tuple[Cell, str | None]]:
    """The cells of one implementation on one topology, each with the reason why it is not planned."""
    callbacks = callbacks_of(implementation)
    for callback in callbacks:
        for program in all_programs():
            cell = ProgramCell(implementation, callback, program, topology)
            reason = ineligible(callback, program, topology.device_count)
            yield cell, reason or left_out(callback, program, topology, largest)
    names = {callback.name for callback in callbacks}
    for entry in TABLE:
        yield TableCell(implementation, entry, topology), _only_on(largest, topology, "the table is checked")
    for fault in FAULTS:
        if fault.callback in names:
            reason = fault.ineligible(topology.device_count)
            yield (
                FaultCell(implementation, fault, topology),
                reason or _only_on(largest, topology, "faults are planted"),
            )


def _only_on(largest: Topology, topology: Topology, what: str) -> str | None:
    return None if topology == largest else f"{what} on the largest topology, {largest.name}"
