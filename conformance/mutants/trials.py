"""Runs mutants: each with its cells, and the same cells with the unbroken implementation."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..engine.conclusions import Conclusion
from ..engine.requirements import require_pytest
from ..engine.run import clear, setup_in, task_of
from ..engine.tasks import Setup
from ..planning.cells import Cell
from ..planning.processes import USUAL, plan_over_processes
from ..planning.selection import undrawn_plan_of
from ..spec.errors import CommandError
from .matrix import Matrix, Row
from .mutant import Mutant

UNBROKEN = "hostcb"
DEVICE_COUNTS = (1, 8)
JOURNAL = "mutants-journal.jsonl"


def cells_of(mutant: Mutant, planned: Sequence[Cell]) -> list[Cell]:
    """The planned cells that a mutant names, with the unbroken implementation."""
    for glob in mutant.cells:
        if not any(_is_named(cell, glob) for cell in planned):
            raise CommandError(f"the mutant {mutant.name} names {glob!r}, and no planned cell is called so")
    return [cell for cell in planned if any(_is_named(cell, glob) for glob in mutant.cells)]


def planned_cells() -> tuple[Cell, ...]:
    """The cells that mutants may name."""
    plan = undrawn_plan_of([UNBROKEN], "cpu", DEVICE_COUNTS).with_(plan_over_processes([UNBROKEN], [USUAL]))
    return plan.on_this_release().cells


def _is_named(cell: Cell, glob: str) -> bool:
    # Several processes take seconds to start, so a glob for any topology is not about theirs.
    wanted = cell.topology.processes == 1 or glob.endswith(f"/{cell.topology.name}")
    return wanted and fnmatch.fnmatchcase(_without_implementation(cell.id), glob)


def _without_implementation(cell_id: str) -> str:
    return cell_id.partition("/")[2]


def run(mutants: Sequence[Mutant], results: Path, workers: int, deadline: float) -> Matrix:
    """Try all mutants."""
    require_pytest(workers)
    # Imported here, because worker processes also look up mutants, and do not need pytest.
    from ..engine.execution import execute

    planned = planned_cells()
    cells = {mutant.name: cells_of(mutant, planned) for mutant in mutants}
    control = list({cell.id: cell for named in cells.values() for cell in named}.values())
    owners = {mutant.implementation: mutant for mutant in mutants}
    broken = [replace(cell, implementation=mutant.implementation) for mutant in mutants for cell in cells[mutant.name]]
    matrix = Matrix([Row(mutant) for mutant in mutants])

    def note_control(cell_id: str, conclusion: Conclusion) -> None:
        matrix.add_control(_without_implementation(cell_id), conclusion.outcome)

    def note(cell_id: str, conclusion: Conclusion) -> None:
        owner = owners[cell_id.partition("/")[0]]
        matrix.add(owner, _without_implementation(cell_id), conclusion.outcome)

    def setup(cells: Sequence[Cell]) -> Setup:
        return setup_in(results, JOURNAL, [task_of(cell, deadline) for cell in cells])

    started = time.monotonic()
    clear(results, JOURNAL)
    unbroken = execute(setup(control), workers, note_control)
    matrix.problems += [*unbroken.gaps, *unbroken.problems, *unbroken.stats.exit_problems]
    if not unbroken.interrupted:
        planted = execute(setup(broken), workers, note)
        # The end of a mutant's worker does not count: a broken implementation may break that, too.
        matrix.problems += [*planted.gaps, *planted.problems]
    matrix.seconds = time.monotonic() - started
    return matrix
