"""A whole run: plan, execution, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import Cell, FaultCell, Plan
from ..reports.provenance import Provenance
from ..reports.report import NOTHING_RAN, Report
from ..reports.results import name_of
from ..spec.depths import Depth
from ..spec.platforms import platform_named
from ..spec.topology import WrongPlatformError
from ..worker.links import Cluster
from ..worker.stress import stress
from .conclusions import Conclusion, conclude_repeated
from .journal import Journal
from .last_run import LastRun
from .live import LiveView, progress_of
from .origin import Origin
from .progress import Progress
from .run_journal import Past, begin, events, past_of
from .tasks import Setup, Task
from .tools import DaskClusterError, require_tools

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
    whole: bool = False
    """Whether all cells of the platform are asked for."""
    scheduler: str | None = None
    """The address of a Dask scheduler, on whose cluster the cells run."""
    depth: Depth = Depth.RUN
    depth_asked: bool = True
    """Whether the user has named the depth. If the machine has chosen one, its exit code says so."""
    maxfail: int = 0
    """The number of unexpected results after which the run stops; 0 for none."""
    plugins: Sequence[str] = ()
    """The user's own pytest plugins."""
    live: str = "auto"
    """How the progress is shown, see `live`."""
    planned_order: bool = False
    """Whether the cells that kill most mutants do not run first."""
    compiled: Path | None = None
    """The folder from which compiled programs may come."""

    @property
    def name(self) -> str:
        """The name in the files of the results: the platform, and the depth if nothing runs."""
        return name_of(self.platform, self.depth.value)

    @property
    def of_cells(self) -> dict[str, Any]:
        """The options on which the conclusion of a cell depends."""
        named = {"deadline": self.deadline, "repeat": self.repeat, "stress": self.stress}
        return {**named, "histories": self.histories, **({"compiled": True} if self.compiled else {})}


class Run:
    """The cells of a run, and their conclusions."""

    def __init__(
        self,
        plan: Plan,
        selection: Plan,
        expectations: Expectations,
        options: Options,
        jax_version: str,
        origin: Origin | None = None,
        past: Past | None = None,
        fields: Mapping[str, Any] | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """A run of the cells in `selection`, which may be outside the plan.

        `origin` is the selection of which these cells are a part, `past` what is known of them already, and `fields`
        are added to those of the results.
        """
        self.options = options
        self.cells = selection.cells
        origin = origin or Origin(self.cells, self.cells)
        self._past = past or Past()
        self._resumed = False
        self._journal: Journal | None = None
        self._last: LastRun | None = None
        expectations = expectations.applicable(jax_version).at(options.depth)
        self._report = Report(
            options.platform,
            expectations,
            stress=options.stress,
            compiled=options.compiled is not None,
            provenance=provenance,
        )
        self._report.depth, self._report.depth_asked = options.depth, options.depth_asked
        self._report.claims = platform_named(options.platform).claims
        self._report.whole = options.whole
        self._report.ineligible = selection.ineligible
        self._report.lacking = selection.lacking
        self._report.fields = {**origin.as_json(options.of_cells), **(fields or {})}
        self._report.empty_shard = bool(origin.shard and origin.whole and not self.cells)
        self._header = origin.header(options.of_cells, expectations)
        # A shard knows all cells of its selection: otherwise it would call entries for other shards stale.
        planned = [cell.id for cell in (*plan.cells, *origin.whole)]
        self._report.stale_expectations = expectations.unmatched(planned)
        self._report.problems += [
            f"the expectation {pattern!r} matches no planned cell" for pattern in self._report.stale_expectations
        ]
        self._conclusions: dict[str, Conclusion] = {}
        self._progress: Progress | LiveView | None = None
        self._started = time.monotonic()

    def resume(self) -> None:
        """Go on with the run in the results folder, from its journal."""
        if self.options.results.is_dir():
            LastRun(self.options.results, self._journal_name)
        path = self.options.results / self._journal_name
        self._past = past_of(path, self._header, self._report.expectations, [cell.id for cell in self.cells])
        self._resumed = True

    @property
    def _journal_name(self) -> str:
        return f"journal-{self.options.name}.jsonl"

    @property
    def tasks(self) -> list[Task]:
        """The cells that have no conclusion yet."""
        concluded = {**self._past.conclusions, **self._past.given_up}
        return [task_of(cell, self.options.deadline) for cell in self.cells if cell.id not in concluded]

    def setup(self, workers: int) -> Setup:
        """The setup of the engine; this also puts away the files of an earlier run in the results folder."""
        self._started = time.monotonic()
        self.options.results.mkdir(parents=True, exist_ok=True)
        self._last = LastRun(self.options.results, self._journal_name)
        if not self._resumed:
            self._last.put_away()
        setup = setup_in(self.options.results, self._journal_name, self.tasks)
        begin(setup.journal, self._header, self._past)
        self._journal = Journal(setup.journal)
        if self._progress:
            self._progress.follow(setup.journal)
        return replace(
            setup,
            expectations=self._report.expectations,
            histories=self.options.histories,
            reruns=max(1, MAXIMUM_RERUNS // workers),
            repeat=self.options.repeat,
            planned_order=self.options.planned_order,
            compiled=self.options.compiled,
        )

    def load(self) -> AbstractContextManager[object]:
        """The load on the machine that the run asks for."""
        return stress() if self.options.stress else contextlib.nullcontext()

    def show_progress(self) -> None:
        self._progress = progress_of(self.options.live, len(self.tasks))

    def leave_progress(self) -> None:
        """Leave the last state of the progress on its stream."""
        progress, self._progress = self._progress, None
        if progress:
            progress.finish()

    def concluded(self, cell_id: str, conclusion: Conclusion) -> None:
        """The engine calls this with the conclusion of a cell."""
        conclusion = self._past.with_earlier(cell_id, conclusion, self._report.expectations)
        standing = self._report.expectations.standing(cell_id, conclusion.outcome)
        # A plugin of the user may run a cell again: a good result does not take the place of a bad one.
        if cell_id not in self._conclusions or not standing.acceptable:
            self._conclusions[cell_id] = conclusion
            self._write(event="concluded", cell=cell_id, **conclusion.as_json())
        if self._progress:
            self._progress.advance(cell_id, standing.acceptable)

    def finish(self, controller: Controller | None, deselected: Collection[str] = ()) -> Report:
        """Write the report after the end of all cells."""
        self.leave_progress()
        report = self._report
        if controller:
            conclusions = self._in_journal(controller.setup.journal) | self._conclusions
            self._write(event="finished")
            if self._journal:
                self._journal.close()
            if self._last:
                self._last.settle()
            if controller.refusals and not self._conclusions:
                raise WrongPlatformError(controller.refusals[0])
            never_run = _NEVER_RUN
            if controller.stopped:
                controller.gaps.append(controller.stopped)
                never_run = Conclusion(Outcome(Verdict.MISSING, reason=controller.stopped), attempts=0)
            report.problems += [*self._past.problems, *controller.gaps, *controller.problems]
            report.problems += controller.learnt.exit_problems
            report.gaps = controller.gaps
            report.run_info = {**self._past.run_info} | controller.learnt.run_info
            report.process_starts = self._past.process_starts + controller.learnt.process_starts
            conclusions |= self._past.given_up
            conclusions |= self._past.conclusions
            for cell in self.cells:
                if cell.id not in deselected:
                    found = conclusions.get(cell.id, never_run)
                    report.add(cell, found.outcome, found.attempts, found.company, found.repetition)
        report.whole = report.whole and not deselected
        report.conclude()
        report.seconds = self._past.seconds + time.monotonic() - self._started
        file = self.options.results / f"conformance-{self.options.name}.json"
        if report.exit_code == NOTHING_RAN and file.exists():
            report.problems.append(f"{file} still has the results of an earlier run")
            return report
        try:
            report.write(file)
        except OSError as error:
            # The summary is printed all the same: cells may have run for hours.
            report.problems.append(f"{file} could not be written, so there are no results to read: {error.strerror}")
        return report

    def leave(self) -> None:
        """Bring back what `setup` has put away: nothing ran."""
        if self._journal:
            self._journal.close()
        if self._last:
            self._last.settle()

    def _in_journal(self, journal: Path) -> dict[str, Conclusion]:
        """Conclusions for cells without one in an interrupted run: from the first run, or from all that ended."""
        outcomes = _outcomes_in(journal)
        known = self._report.expectations
        if self.options.repeat == 1:
            first = {cell_id: Conclusion(found[0]) for cell_id, found in outcomes.items()}
            return {cell_id: self._past.with_earlier(cell_id, one, known) for cell_id, one in first.items()}
        return {cell_id: conclude_repeated(cell_id, found, known) for cell_id, found in outcomes.items()}

    def _write(self, **line: Any) -> None:
        """Write a line to the journal. A full disk must not end the run, whose cells may have run for hours."""
        try:
            if self._journal:
                self._journal.write(**line)
        except OSError as error:
            if self._journal:
                self._journal.close()
            self._journal = None
            self._report.problems.append(f"the journal could not be written, so --resume has gaps: {error.strerror}")


def run(prepared: Run, workers: int, cluster: Cluster | None = None) -> Report:
    """Run the cells, in a cluster's job on its hosts, and write the report."""
    prepared.options.results.mkdir(parents=True, exist_ok=True)
    if not prepared.cells:
        return prepared.finish(None)
    if prepared.options.scheduler:
        from .dask_cluster import execute_on

        prepared.show_progress()
        try:
            setup, maxfail = prepared.setup(workers), prepared.options.maxfail
            controller = execute_on(prepared.options.scheduler, setup, prepared.concluded, maxfail)
        except DaskClusterError:
            prepared.leave()
            raise
        finally:
            prepared.leave_progress()
        return prepared.finish(controller)
    require_tools(workers)
    # Imported here, because planning and listing cells does not need pytest.
    from .execution import execute

    prepared.show_progress()
    try:
        with prepared.load():
            options = prepared.options
            setup = replace(prepared.setup(workers), cluster=cluster)
            controller = execute(setup, workers, prepared.concluded, maxfail=options.maxfail, plugins=options.plugins)
    finally:
        prepared.leave_progress()
    return prepared.finish(controller)


def task_of(cell: Cell, deadline: float) -> Task:
    """The engine's description of a cell."""
    if not isinstance(cell, FaultCell):
        return Task(cell.id, cell.implementation, cell.topology, deadline, cell.isolated)
    own = deadline if cell.fault.deadline is None else min(cell.fault.deadline, deadline)
    quiet = bool(cell.fault.quiet)
    return Task(cell.id, cell.implementation, cell.topology, own, cell.isolated, cell.fault.xla_flags, quiet)


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
    for event in events(journal):
        if event["event"] == "end":
            found.setdefault(event["cell"], []).append(Outcome.from_json(event["outcome"]))
    return found
