"""Cells: the units of the suite, each with an id that can be run alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..cases.harness.catalogue import RUNTIME_TARGETS, all_cases, case_named
from ..cases.harness.extensions import extend
from ..cases.harness.registry import RegisteredCase
from ..implementations import callbacks_asked_of, why_not_offered, why_without
from ..model.programs import Prediction, Program, all_programs
from ..model.transforms import TRANSFORMS
from ..spec.callbacks import HOST_CALLBACKS, Callback
from ..spec.configurations import CONTEXTS, JIT_DISABLED, PLACEMENTS, why_no_configuration
from ..spec.data import PLAIN, DataKind, parse_data
from ..spec.depths import Depth
from ..spec.errors import CommandError, did_you_mean
from ..spec.jax_versions import why_missing, why_no_runtime_targets
from ..spec.package import COMMAND
from ..spec.support_table import TABLE, TableEntry
from ..spec.topology import CPU_CONFIGURATIONS, DEFAULT, Topology, UnknownTopologyError, parse_topology
from ..spec.xla_flags import why_unknown
from .axes import variant_reason
from .eligibility import ineligible, ineligible_over_processes
from .keywords import any_of
from .sampling import left_out

PROMISES_OF_ALL = {"H4", "H9", "H10"}
"""Promises about transforms that hold for every callback. Those about the other transforms name their functions."""


@dataclass(frozen=True)
class ProgramCell:
    """A callback in a program on a topology."""

    implementation: str
    callback: Callback
    program: Program
    topology: Topology
    data: DataKind = PLAIN
    placement: str = "all"
    configuration: str = DEFAULT
    """The configuration that the worker switches on for the cell; the topology has the one that its worker needs."""

    isolated = False

    @property
    def id(self) -> str:
        program = self.program.name if self.data.plain else f"{self.program.name}+{self.data.name}"
        options = [self.placement] if self.placement != "all" else []
        options += [self.configuration] if self.configuration != DEFAULT else []
        return "/".join((self.implementation, self.callback.name, program, self.topology.name_with(*options)))

    @property
    def device_count(self) -> int:
        """The number of devices that the program itself uses."""
        return PLACEMENTS[self.placement].count(self.topology.device_count)

    @property
    def taps_tangents(self) -> bool:
        """Whether the program runs the callback on tangents: as a number of its own kind a tangent is not linear."""
        return self.callback.linear and self.data.plain

    @property
    def prediction(self) -> Prediction:
        """The right callbacks and results; raises `RefusalError` if the program must be refused."""
        return self.prediction_in(0)

    def prediction_in(self, process: int) -> Prediction:
        """The part of one of the topology's processes in the right callbacks, and its results."""
        jit_disabled = self.configuration == JIT_DISABLED
        return self.program.prediction(
            self.callback,
            self.device_count,
            data=self.data,
            jit_disabled=jit_disabled,
            processes=self.topology.processes,
            process=process,
        )

    @property
    def lacking(self) -> str | None:
        """A text of what the cell needs and this release lacks; None if it can run."""
        reason = why_not_offered(self.implementation, self.callback) or why_no_configuration(self.configuration)
        return reason or why_no_configuration(self.topology.configuration)

    @property
    def callback_name(self) -> str:
        return self.callback.name

    @property
    def promises(self) -> tuple[str, ...]:
        of_program = {*self.program.promises}
        of_processes = {"H23"} if self.topology.processes > 1 else set()
        if self.callback not in HOST_CALLBACKS:
            # The promises of these callbacks say how the other transforms treat them.
            of_program &= PROMISES_OF_ALL
            of_program |= {"H5"} if self.callback.ordered else set()
        return tuple(sorted({*self.callback.promises, *of_program, *of_processes}))


@dataclass(frozen=True)
class CaseCell:
    """A misbehaving callback, in a process of its own if it may end or hang its process."""

    implementation: str
    case: RegisteredCase
    topology: Topology

    @property
    def isolated(self) -> bool:
        return self.case.isolated

    @property
    def id(self) -> str:
        return "/".join((self.implementation, self.case.callback, self.case.name, self.topology.name))

    @property
    def lacking(self) -> str | None:
        """The part of JAX, of jaxlib or of the implementation that the case needs and this release lacks."""
        if self.case.callback in RUNTIME_TARGETS:
            return why_no_runtime_targets()
        offered = next(one for one in callbacks_asked_of(self.implementation) if one.name == self.case.callback)
        reason = why_not_offered(self.implementation, offered)
        return reason or why_missing(self.case.needs) or why_unknown(self.case.xla_flags)

    @property
    def callback_name(self) -> str:
        return self.case.callback

    @property
    def promises(self) -> tuple[str, ...]:
        return self.case.promises


@dataclass(frozen=True)
class TableCell:
    """An entry of the table of supported combinations."""

    implementation: str
    entry: TableEntry
    topology: Topology

    isolated = False

    @property
    def id(self) -> str:
        return "/".join((self.implementation, self.entry.row, self.entry.name, self.topology.name))

    @property
    def lacking(self) -> str | None:
        return self.programs[0].lacking

    @property
    def callback_name(self) -> str:
        return self.entry.row

    @property
    def promises(self) -> tuple[str, ...]:
        return ("X1",)

    @property
    def programs(self) -> tuple[ProgramCell, ...]:
        (callback,) = (c for c in callbacks_asked_of(self.implementation) if c.name == self.entry.callback)
        return tuple(
            ProgramCell(self.implementation, callback, Program(tuple(name.split("."))), self.topology)
            for name in self.entry.programs
        )


Cell: TypeAlias = ProgramCell | CaseCell | TableCell


def runtime_targets_of(implementation: str, platform: str) -> tuple[str, ...]:
    """Targets of the runtime, which have case cells as if they were callbacks of the implementation."""
    return RUNTIME_TARGETS if (implementation, platform) == ("jax", "cpu") else ()


class UnknownCellError(CommandError, ValueError):
    """The id of no cell."""


class NotInReleaseError(UnknownCellError):
    """The id of a cell that needs what this release of JAX or jaxlib lacks."""

    def __init__(self, cell_id: str, reason: str) -> None:
        super().__init__(f"{cell_id} means nothing: {reason}")
        self.reason = reason


def parse_cell(cell_id: str, any_release: bool = False) -> Cell:
    """The cell with this id. It may have any composition of transforms, planned or not.

    With `any_release`, the installed release may lack what the cell needs.
    """
    cell = _parse_any_topology(cell_id)
    if reason := _why_not_there(cell):
        raise UnknownCellError(f"{cell_id} means nothing: {reason}")
    if not any_release and (reason := cell.lacking):
        raise NotInReleaseError(cell_id, reason)
    return cell


def _why_not_there(cell: Cell) -> str | None:
    """The reason if a cell has no meaning in as many processes as its topology has; otherwise None."""
    processes = cell.topology.processes
    if isinstance(cell, CaseCell):
        return "this case " + wrong if (wrong := cell.case.ineligible_in(processes)) else None
    if processes == 1 or cell.topology.depth is not Depth.RUN:
        return None
    if isinstance(cell, TableCell):
        return "the table is checked in one process"
    return ineligible_over_processes(cell.program.names, cell.placement)


def _parse_any_topology(cell_id: str) -> Cell:
    if "*" in cell_id:
        raise UnknownCellError(
            f"{cell_id!r} is a pattern, and no cell id: for a pattern use -k, as in `{COMMAND} list -k EXPR`"
        )
    parts = cell_id.split("/")
    if len(parts) != 4:
        raise UnknownCellError(
            f"{cell_id!r} is no cell id: expected implementation/callback/program/topology,"
            f" as `{COMMAND} list` prints them"
        )
    implementation, callback_name, program_name, topology_name = parts
    topology, placement, configuration = _parse_topology(topology_name)
    extend(topology.platform)

    callback = next((c for c in callbacks_asked_of(implementation) if c.name == callback_name), None)
    if callback is None and callback_name not in runtime_targets_of(implementation, topology.platform):
        known = [each.name for each in callbacks_asked_of(implementation)]
        alike = did_you_mean(callback_name, known, f"; it has {', '.join(known)}")
        raise UnknownCellError(f"{implementation} has no callback {callback_name!r}{alike}")

    if program_name.startswith("case."):
        case = case_named(callback_name, program_name)
        if case is not None:
            return CaseCell(implementation, case, topology)
        of_others = ", ".join(one.callback for one in all_cases() if one.name == program_name)
        known = [one.name for one in all_cases() if one.callback == callback_name]
        alike = f"; it is one of {of_others}" if of_others else did_you_mean(program_name, known)
        raise UnknownCellError(f"no case {program_name!r} of {callback_name} is known{alike}")

    if program_name.startswith("table."):
        for entry in TABLE:
            if (entry.row, entry.name) == (callback_name, program_name):
                return TableCell(implementation, entry, topology)
        alike = did_you_mean(program_name, [entry.name for entry in TABLE if entry.row == callback_name])
        raise UnknownCellError(f"the table has no {program_name!r} of {callback_name!r}{alike}")

    if callback is None:
        raise UnknownCellError(f"{callback_name} has cases alone, and {program_name!r} is none")
    composition, _, data_name = program_name.partition("+")
    data = parse_data(data_name) if data_name else PLAIN
    if data is None:
        raise UnknownCellError(f"{data_name!r} is no kind of data: expected one like int8-matrix-dict")
    names = tuple(composition.split("."))
    if unknown := [name for name in names if name not in TRANSFORMS]:
        alike = did_you_mean(unknown[0], TRANSFORMS, f"; there are {', '.join(TRANSFORMS)}")
        raise UnknownCellError(f"unknown transform {unknown[0]!r} in {cell_id!r}{alike}")
    program = Program(names)
    cell = ProgramCell(implementation, callback, program, topology, data, placement, configuration)
    reason = ineligible(callback, program, cell.device_count)
    reason = reason or variant_reason(callback_name, names, placement, topology.device_count, configuration, data)
    if reason:
        raise UnknownCellError(f"{cell_id} means nothing: {reason}")
    return cell


def _parse_topology(name: str) -> tuple[Topology, str, str]:
    """A topology, and the placement and the configuration after it, if there are any."""
    try:
        topology, options = parse_topology(name)
    except UnknownTopologyError as error:
        raise UnknownCellError(str(error)) from None
    placement, configuration = "all", DEFAULT
    for option in options:
        if option in PLACEMENTS:
            placement = option
        elif option in CONTEXTS:
            configuration = option
        else:
            alike = did_you_mean(option, [*PLACEMENTS, *CONTEXTS, *CPU_CONFIGURATIONS])
            raise UnknownCellError(f"{option!r} in {name!r} is no placement and no configuration{alike}")
    return topology, placement, configuration


@dataclass(frozen=True)
class Ineligible:
    """A combination that is not run, and the reason: the suite lists it, and never counts it as passed."""

    id: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Cells in a fixed order. A plan is the same for every release, until `on_this_release` leaves out cells."""

    cells: tuple[Cell, ...]
    ineligible: tuple[Ineligible, ...]
    lacking: tuple[Cell, ...] = ()
    """The cells that this release lacks; they are ineligible, too."""

    @staticmethod
    def of(candidates: Iterable[tuple[Cell, str | None]]) -> Plan:
        """The cells that no reason excludes, and the others with their reasons."""
        found = [*candidates]
        cells = tuple(cell for cell, reason in found if reason is None)
        return Plan(cells, tuple(Ineligible(cell.id, reason) for cell, reason in found if reason is not None))

    def on_this_release(self) -> Plan:
        """The plan without the cells that the installed release or the implementation lacks, each with the reason."""
        reasons = {cell.id: cell.lacking for cell in self.cells}
        lacking = tuple(cell for cell in self.cells if reasons[cell.id])
        cells = tuple(cell for cell in self.cells if not reasons[cell.id])
        left_out = tuple(Ineligible(cell.id, reasons[cell.id] or "") for cell in lacking)
        return replace(self, cells=cells, ineligible=(*self.ineligible, *left_out), lacking=lacking)

    def with_(self, other: Plan) -> Plan:
        """The cells of both plans, each once."""
        cells = {cell.id: cell for cell in (*self.cells, *other.cells)}
        ineligible = {one.id: one for one in (*self.ineligible, *other.ineligible)}
        return Plan(tuple(cells.values()), tuple(ineligible.values()), (*self.lacking, *other.lacking))

    def select(self, patterns: Sequence[str]) -> Plan:
        """The part of the plan whose ids match one of the expressions, each of which must match one."""
        if not patterns:
            return self
        wanted = any_of(patterns, [one.id for one in (*self.cells, *self.ineligible)])
        return Plan(
            tuple(cell for cell in self.cells if wanted(cell.id)),
            tuple(cell for cell in self.ineligible if wanted(cell.id)),
            tuple(cell for cell in self.lacking if wanted(cell.id)),
        )


def make_whole_plan(implementations: Sequence[str], topologies: Sequence[Topology], sampled: bool = True) -> Plan:
    """The cells of single transforms, of pairs and of chosen triples, of the table and of cases, for every release.

    With `sampled`, the plan leaves out cells that test little more than other cells, with the reason.
    """
    for topology in topologies:
        extend(topology.platform)
    largest = max(topologies, key=lambda topology: topology.device_count)
    each = itertools.product(topologies, implementations)
    return Plan.of(one for topology, name in each for one in _candidates(name, topology, largest, sampled))


def _candidates(
    implementation: str, topology: Topology, largest: Topology, sampled: bool
) -> Iterator[tuple[Cell, str | None]]:
    """The cells of one implementation on one topology, each with the reason why it is not planned."""
    callbacks = callbacks_asked_of(implementation)
    for callback in callbacks:
        for program in all_programs():
            cell = ProgramCell(implementation, callback, program, topology)
            reason = ineligible(callback, program, topology.device_count)
            yield cell, reason or (left_out(callback, program, topology, largest) if sampled else None)
    for entry in TABLE:
        yield TableCell(implementation, entry, topology), _only_on(largest, topology, "the table is checked")
    names = {callback.name for callback in callbacks}
    names.update(runtime_targets_of(implementation, topology.platform))
    for case in all_cases():
        if case.callback in names:
            reason = (
                case.ineligible(topology.device_count, topology.processes)
                or why_without(implementation, case.functions)
                or _only_on(largest, topology, "cases run")
            )
            yield CaseCell(implementation, case, topology), reason


def _only_on(largest: Topology, topology: Topology, what: str) -> str | None:
    return None if topology == largest else f"{what} on the largest topology, {largest.name}"
