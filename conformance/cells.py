"""Cells: the units of the suite, each with an id that can be run alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.callbacks import Callback
from conformance.eligibility import ineligible
from conformance.fault_catalogue import FAULTS, Fault
from conformance.implementations import callbacks_of
from conformance.programs import Program, all_programs
from conformance.topology import Topology
from conformance.transforms import TRANSFORMS


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
        return tuple(sorted({*self.callback.promises, *self.program.promises}))


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


Cell: TypeAlias = ProgramCell | FaultCell


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

    if program_name.startswith("fault."):
        for fault in FAULTS:
            if (fault.callback, fault.name) == (callback_name, program_name):
                return FaultCell(implementation, fault, topology)
        raise UnknownCellError(f"no fault {program_name!r} of {callback_name!r} is known")

    names = tuple(program_name.split("."))
    if unknown := [name for name in names if name not in TRANSFORMS]:
        raise UnknownCellError(f"unknown transform {unknown[0]!r} in {cell_id!r}; there are {', '.join(TRANSFORMS)}")
    for callback in callbacks_of(implementation):
        if callback.name == callback_name:
            program = Program(names)
            if reason := ineligible(callback, program, topology.device_count):
                raise UnknownCellError(f"{cell_id} means nothing: {reason}")
            return ProgramCell(implementation, callback, program, topology)
    raise UnknownCellError(f"{implementation} has no callback {callback_name!r}")


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


FULL_PAIR_CALLBACKS = ("id_tap", "call")
"""Callbacks that are tried under every pair of transforms. The others share their machinery."""

SAMPLED_PAIRS = (
    "jit.vmap",
    "vmap.vmap",
    "vmap.while_body",
    "vmap.while_cond",
    "vmap.cond",
    "vmap.scan",
    "scan.vmap",
    "grad.scan",
    "grad.remat",
    "grad.cond",
    "grad.custom_vjp",
    "jvp.custom_jvp",
    "pmap.scan",
    "pmap.vmap",
    "pmap.cond",
    "vmap.pmap",
    "pjit.scan",
    "pjit.vmap",
    "shard_map.cond",
    "shard_map.while_body",
)
"""The pairs that the other callbacks are tried under: where batching, recomputation, data-dependent
control flow and devices meet."""


def _sampled(callback: Callback, program: Program) -> bool:
    return (
        callback.name in FULL_PAIR_CALLBACKS
        or len(program.names) == 1
        or (len(program.names) == 2 and program.name in SAMPLED_PAIRS)
    )


def make_plan(implementations: Sequence[str], topologies: Sequence[Topology]) -> Plan:
    """Every cell there is, in a fixed order."""
    cells: list[Cell] = []
    largest = max(topologies, key=lambda topology: topology.device_count)
    left_out: list[Ineligible] = []
    for topology in topologies:
        for implementation in implementations:
            for callback in callbacks_of(implementation):
                for program in all_programs():
                    cell = ProgramCell(implementation, callback, program, topology)
                    reason = ineligible(callback, program, topology.device_count)
                    if reason is None and not _sampled(callback, program):
                        reason = (
                            "not sampled: pairs of transforms are complete for"
                            f" {' and '.join(FULL_PAIR_CALLBACKS)} only"
                        )
                    if reason is None:
                        cells.append(cell)
                    else:
                        left_out.append(Ineligible(cell.id, reason))
            for fault in FAULTS:
                fault_cell = FaultCell(implementation, fault, topology)
                reason = fault.ineligible(topology.device_count)
                if reason is None and topology != largest:
                    reason = f"faults are planted on the largest topology, {largest.name}"
                if reason is None:
                    cells.append(fault_cell)
                else:
                    left_out.append(Ineligible(fault_cell.id, reason))
    return Plan(tuple(cells), tuple(left_out))
