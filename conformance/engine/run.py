"""A whole run: plan, execution, report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import Cell, FaultCell, Plan
from ..reports.report import Report
from ..spec.topology import WrongPlatformError
from ..worker.links import Cluster
from ..worker.stress import stress
from .conclusions import Conclusion, conclude_repeated
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
    repeat: int = 1
    """How often each cell runs."""
    stress: bool = False
    """Whether busy processes put load on the machine."""
    histories: bool = False
    """Whether the report has the histories of passed cells as well."""


class Run:
    """The cells of a run, and their conclusions."""

    def __init__(
        self,
        plan: Plan,
        selection: Plan,
        expectations: Expectations,
        options: Options,
        jax_version: str,
    ) -> None:
        """A run of the cells in `selection`, which may be outside the plan."""
        self.options = options
        self.cells = selection.cells
        expectations = expectations.applicable(jax_version)
        self._report = Report(options.platform, expectations, stress=options.stress)
        self._report.ineligible = selection.ineligible
        self._report.lacking = selection.lacking
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
            histories=self.options.histories,
            reruns=max(1, MAXIMUM_RERUNS // workers),
            repeat=self.options.repeat,
        )

    def load(self) -> AbstractContextManager[object]:
        """The load on the machine that the run asks for."""
        return stress() if self.options.stress else contextlib.nullcontext()

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
            conclusions = self._in_journal(controller.setup.journal) | self._conclusions
            for cell in self.cells:
                if cell.id not in deselected:
                    found = conclusions.get(cell.id, _NEVER_RUN)
                    report.add(cell, found.outcome, found.attempts, found.company, found.repetition)
        report.seconds = time.monotonic() - self._started
        file = self.options.results / f"conformance-{self.options.platform}.json"
        try:
            report.write(file)
        except OSError as error:
            # The summary is printed all the same: cells may have run for hours.
            report.problems.append(f"{file} could not be written, so there are no results to read: {error.strerror}")
        return report

    def _in_journal(self, journal: Path) -> dict[str, Conclusion]:
        """Conclusions for cells without one in an interrupted run: from the first run, or from all that ended."""
        outcomes = _outcomes_in(journal)
        if self.options.repeat == 1:
            return {cell_id: Conclusion(found[0]) for cell_id, found in outcomes.items()}
        known = self._report.expectations
        return {cell_id: conclude_repeated(cell_id, found, known) for cell_id, found in outcomes.items()}


def run(prepared: Run, workers: int, cluster: Cluster | None = None) -> Report:
    """Run the cells, in a cluster's job on its hosts, and write the report."""
    prepared.options.results.mkdir(parents=True, exist_ok=True)
    if not prepared.cells:
        return prepared.finish(None)
    require_tools(workers)
    # Imported here, because planning and listing cells does not need pytest.
    from .execution import execute

    prepared.show_progress()
    with prepared.load():
        controller = execute(replace(prepared.setup(workers), cluster=cluster), workers, prepared.concluded)
    return prepared.finish(controller)


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


def _outcomes_in(journal: Path) -> dict[str, list[Outcome]]:
    """The outcomes of all runs of each cell."""
    found: dict[str, list[Outcome]] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        # A process may have been killed while it wrote the last line.
        with contextlib.suppress(json.JSONDecodeError):
            event = json.loads(line)
            if event["event"] == "end":
                found.setdefault(event["cell"], []).append(Outcome.from_json(event["outcome"]))
    return found
