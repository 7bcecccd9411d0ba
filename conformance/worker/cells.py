"""Runs a cell of any kind in this process, at its depth, and judges it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import jax

from ..cases.harness.running import run_case
from ..implementations import Implementation
from ..oracle.checkers import Anomaly
from ..oracle.history import Recorder
from ..oracle.verdicts import Outcome, Stage, Verdict
from ..planning.cells import CaseCell, Cell, ProgramCell, TableCell
from ..spec.callbacks import Runs
from ..spec.depths import Depth
from ..spec.support_table import GUARANTEED, RETURNS, TableEntry
from .aot import lower_program
from .execution import Judgement, run_program

Here: TypeAlias = tuple[Implementation, Recorder, Sequence[jax.Device]]
"""What runs programs in this process."""


def run_cell(cell: Cell, implementation: Implementation, recorder: Recorder, devices: Sequence[jax.Device]) -> Outcome:
    if isinstance(cell, CaseCell):
        return run_case(cell.case, implementation, devices)
    started = time.perf_counter()
    here = implementation, recorder, devices
    judged = _of_entry(cell, here) if isinstance(cell, TableCell) else _of_program(cell, here)
    outcome = judged.outcome(time.perf_counter() - started)
    if cell.topology.depth is not Depth.RUN:
        return replace(outcome, shown=judged.shown)
    shows_nothing = judged.is_refused and not judged.history.events and isinstance(cell, ProgramCell)
    return replace(outcome, refused=shows_nothing)


def _of_program(cell: ProgramCell, here: Here) -> Judgement:
    return (run_program if cell.topology.depth is Depth.RUN else lower_program)(cell, *here)


def _of_entry(cell: TableCell, here: Here) -> Judgement:
    """The programs of an entry, until one of them contradicts it."""
    judged = Judgement()
    for program in cell.programs:
        judged = _of_program(program, here)
        if not judged.anomalies and not _agrees(cell.entry, program, judged):
            answer = "yes" if cell.entry.supported else "no"
            words = f"the table says {answer}, the program shows the opposite"
            judged = replace(judged, anomalies=[Anomaly("table", Stage.TRACE, words)], verdict=Verdict.FAIL, shown="")
        if judged.anomalies:
            first = judged.anomalies[0]
            named = replace(first, witness=f"in {program.program.name}: {first.witness}")
            return replace(judged, anomalies=[named, *judged.anomalies[1:]])
    return judged


def _agrees(entry: TableEntry, cell: ProgramCell, judged: Judgement) -> bool:
    """Whether the table says what a correct program has shown."""
    if entry.column not in (RETURNS, GUARANTEED):
        return judged.is_refused != entry.supported
    if cell.topology.depth is not Depth.RUN:
        # Only a run shows that.
        return True
    if entry.column == RETURNS:
        return cell.callback.returns_new_value == entry.supported
    ran = any(event.site == "unused" for event in judged.history.events)
    # A callback without the guarantee may run, unless its result is known to be unused.
    return entry.supported == (ran and (entry.supported or cell.callback.runs is Runs.IF_NEEDED))
