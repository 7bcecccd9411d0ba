"""Runs mutants: each against its cells, and the cells against the implementation that is not broken."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.cells import Cell, make_plan
from conformance.mutants.matrix import Matrix, Row
from conformance.mutants.mutant import Mutant
from conformance.processes import WorkerStartError
from conformance.progress import Progress
from conformance.supervisor import Finished, Journal, Supervisor
from conformance.topology import Topology
from conformance.verdicts import Verdict

UNBROKEN = "hostcb"
TOPOLOGIES = (Topology("cpu", 1), Topology("cpu", 8))


@dataclass(frozen=True)
class Options:
    results: Path
    workers: int
    deadline: float


class NoSuchCellError(ValueError):
    """A mutant's glob that no planned cell answers to."""


def cells_of(mutant: Mutant, planned: Sequence[Cell]) -> list[Cell]:
    """The planned cells that a mutant names, as they are for the implementation that is not broken."""
    for glob in mutant.cells:
        if not any(fnmatch.fnmatchcase(_name(cell), glob) for cell in planned):
            raise NoSuchCellError(f"the mutant {mutant.name} names {glob!r}, and no planned cell is called so")
    return [cell for cell in planned if any(fnmatch.fnmatchcase(_name(cell), glob) for glob in mutant.cells)]


def _name(cell: Cell) -> str:
    """What is left of an id without the implementation."""
    return cell.id.partition("/")[2]


def run(mutants: Sequence[Mutant], options: Options) -> Matrix:
    """Try all mutants and write the matrix."""
    planned = make_plan([UNBROKEN], TOPOLOGIES).cells
    cells = {mutant.name: cells_of(mutant, planned) for mutant in mutants}
    control = list({cell.id: cell for named in cells.values() for cell in named}.values())
    owners = {mutant.implementation: mutant for mutant in mutants}
    broken = [replace(cell, implementation=mutant.implementation) for mutant in mutants for cell in cells[mutant.name]]
    options.results.mkdir(parents=True, exist_ok=True)
    for old in options.results.glob("worker-*.log"):
        old.unlink()
    matrix = Matrix([Row(mutant) for mutant in mutants])
    progress = Progress(len(control) + len(broken))

    def note_control(finished: Finished) -> None:
        matrix.add_control(_name(finished.cell), finished.outcome)
        progress.advance(finished.cell.id, acceptable=finished.outcome.verdict is Verdict.PASS)

    def note(finished: Finished) -> None:
        matrix.add(owners[finished.cell.implementation], _name(finished.cell), finished.outcome)
        progress.advance(finished.cell.id, acceptable=True)

    started = time.monotonic()
    journal = Journal(options.results / "mutants-journal.jsonl")
    try:
        supervisor = Supervisor(options.results, journal, options.deadline, options.workers)
        supervisor.run(control, alone=False, report=note_control)
        matrix.problems += supervisor.exit_problems
        # How workers end that run mutants is no matter: a broken implementation may break that, too.
        Supervisor(options.results, journal, options.deadline, options.workers).run(broken, alone=False, report=note)
    except WorkerStartError as error:
        matrix.problems.append(str(error))
    finally:
        journal.close()
        matrix.seconds = time.monotonic() - started
    matrix.write(options.results)
    return matrix
