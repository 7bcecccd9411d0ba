"""A whole run: plan, execution, report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import Cell, FaultCell, Plan
from ..reports.report import Report
from ..spec.topology import WrongPlatformError
from .conclusions import Conclusion
from .progress import Progress
from .tasks import Setup, Task
from .tools import require_tools

if TYPE_CHECKING:
    from .controller import Controller

MAXIMUM_RERUNS = 60
"""More unexpected results than this have a common cause, and a second run of each would take longer
than the run itself. So the suite reports the rest from their first run."""


@dataclass(frozen=True)
class Options:
    platform: str
    results: Path
    deadline: float


class Run:
    """The cells of a run, and their conclusions."""

    def __init__(
        self,
        plan: Plan | None,
        selection: Plan,
        expectations: Expectations,
        options: Options,
        jax_version: str,
    ) -> None:
        """A run of the cells in `selection`, which may be outside the plan.

        Without a plan the run does not check that every expectation matches a planned cell.
        """
        self.options = options
        self.cells = selection.cells
        expectations = expectations.applicable(jax_version)
        self._report = Report(options.platform, expectations)
        self._report.ineligible = selection.ineligible
        if plan is not None:
            planned = [cell.id for cell in (*plan.cells, *self.cells)]
            self._report.stale_expectations = expectations.unmatched(planned)
        self._report.problems += [
            f"the expectation {pattern!r} matches no planned cell" for pattern in self._report.stale_expectations
        ]
        self._conclusions: dict[str, Conclusion] = {}
        self._progress: Progress | None = None
        self._started = time.monotonic()

    def setup(self, workers: int) -> Setup:
        """The setup of the engine; this also removes the files of an earlier run from the results folder."""
        self._started = time.monotonic()
        journal = f"journal-{self.options.platform}.jsonl"
        clear(self.options.results, journal)
        return replace(
            setup_in(self.options.results, journal, [task_of(cell, self.options.deadline) for cell in self.cells]),
            expectations=self._report.expectations,
            reruns=max(1, MAXIMUM_RERUNS // workers),
        )

    def show_progress(self) -> None:
        self._progress = Progress(len(self.cells))

    def concluded(self, cell_id: str, conclusion: Conclusion) -> None:
        """The engine calls this with the conclusion of a cell."""
        self._conclusions[cell_id] = conclusion
        standing = self._report.expectations.standing(cell_id, conclusion.outcome)
        if self._progress:
            self._progress.advance(cell_id, standing.acceptable)

    def finish(self, controller: Controller | None, deselected: Collection[str] = ()) -> Report:
        """Write the report after the end of all cells."""
        if self._progress:
            self._progress.finish()
        report = self._report
        if controller:
            if controller.refusals and not self._conclusions:
                raise WrongPlatformError(controller.refusals[0])
            report.problems += [*controller.refusals, *controller.problems, *controller.learnt.exit_problems]
            report.run_info = controller.learnt.run_info
            report.process_starts = controller.learnt.process_starts
            conclusions = _outcomes_in(controller.setup.journal) | self._conclusions
            for cell in self.cells:
                if cell.id not in deselected:
                    found = conclusions.get(cell.id, _NEVER_RUN)
                    report.add(cell, found.outcome, found.attempts, found.company)
        report.seconds = time.monotonic() - self._started
        report.write(self.options.results / f"conformance-{self.options.platform}.json")
        return report


def run(prepared: Run, workers: int) -> Report:
    """Run the cells and write the report."""
    prepared.options.results.mkdir(parents=True, exist_ok=True)
    if not prepared.cells:
        return prepared.finish(None)
    require_tools(workers)
    # Imported here, because planning and listing cells does not need pytest.
    from .execution import execute

    prepared.show_progress()
    return prepared.finish(execute(prepared.setup(workers), workers, prepared.concluded))


def task_of(cell: Cell, deadline: float) -> Task:
    """The engine's description of a cell."""
    if not isinstance(cell, FaultCell):
        return Task(cell.id, cell.implementation, cell.topology, deadline, cell.isolated)
    own = deadline if cell.fault.deadline is None else min(cell.fault.deadline, deadline)
    return Task(cell.id, cell.implementation, cell.topology, own, cell.isolated, cell.fault.xla_flags)


def clear(results: Path, journal: str) -> None:
    """Remove the logs and the journal of an earlier run from a results folder."""
    results.mkdir(parents=True, exist_ok=True)
    for old in (*results.glob("worker-*.log"), results / journal):
        old.unlink(missing_ok=True)


def setup_in(results: Path, journal: str, tasks: Sequence[Task]) -> Setup:
    return Setup(tuple(tasks), results.resolve(), results.resolve() / journal)


_NEVER_RUN = Conclusion(Outcome(Verdict.MISSING, reason="planned and never run"), attempts=0)


def _outcomes_in(journal: Path) -> dict[str, Conclusion]:
    """The first outcome of each cell, for cells whose conclusion did not reach an interrupted run."""
    found: dict[str, Conclusion] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        # A process may have been killed while it wrote the last line.
        with contextlib.suppress(json.JSONDecodeError):
            event = json.loads(line)
            if event["event"] == "end":
                found.setdefault(event["cell"], Conclusion(Outcome.from_json(event["outcome"])))
    return found
