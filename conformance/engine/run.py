"""A whole run: plan, execution, report."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import CaseCell, Cell, Plan
from ..reports.journal import Journal, lines_of, set_aside
from ..reports.provenance import Provenance, plan_digest
from ..reports.report import Report
from ..reports.results import NOTHING_RAN
from ..spec.depths import Depth
from ..spec.platforms import platform_named
from ..spec.suite import versions
from ..worker.transport import Cluster
from .conclusions import Conclusion, conclude_repeated
from .options import PytestOptionsError, RunOptions
from .results_folder.resuming import Past, begin, is_unfinished, past_of
from .tasks import Setup, Task

if TYPE_CHECKING:
    from .pytest_cells.controller import Controller

MAXIMUM_RERUNS = 60
"""More unexpected results than this have a common cause, and a second run of each would take longer
than the run itself. So the suite reports the rest from their first run."""


class Run:
    """The cells of a run, and their conclusions."""

    def __init__(
        self,
        plan: Plan,
        selection: Plan,
        expectations: Expectations,
        options: RunOptions,
        jax_version: str,
        whole: Sequence[Cell] | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """A run of the cells in `selection`, which may be outside the plan; `whole` are those of all shards."""
        self.options = options
        self.cells = selection.cells
        whole = self.cells if whole is None else whole
        self._past = Past()
        self._resumed = False
        self._journal: Journal | None = None
        depth = Depth(options.depth)
        expectations = expectations.applicable(jax_version).at(depth)
        found_versions = versions(cell.implementation for cell in whole)
        self._report = Report(options.platform, expectations, provenance=provenance)
        self._report.depth, self._report.depth_asked = depth, options.depth_asked
        self._report.claims = platform_named(options.platform).claims
        self._report.whole = options.whole
        self._report.ineligible = selection.ineligible
        self._report.lacking = selection.lacking
        self._report.fields = {"versions": found_versions, "options": options.of_cells, **_shard_fields(options, whole)}
        self._header = {
            "selection": plan_digest(cell.id for cell in self.cells),
            "shard": str(options.shard) if options.shard else None,
            "versions": found_versions,
            "options": options.of_cells,
            "expectations": hashlib.sha256(repr(expectations).encode()).hexdigest()[:16],
        }
        # A shard knows all cells of its selection: otherwise it would call entries for other shards stale.
        self._report.stale_expectations = expectations.unmatched([cell.id for cell in (*plan.cells, *whole)])
        self._report.problems += [
            f"the expectation {pattern!r} matches no planned cell" for pattern in self._report.stale_expectations
        ]
        self._conclusions: dict[str, Conclusion] = {}
        self._started = time.monotonic()

    def resume(self) -> None:
        """Go on with the run in the results folder, from its journal."""
        self._settle()
        self._past = past_of(
            self._journal_path, self._header, self._report.expectations, [cell.id for cell in self.cells]
        )
        self._resumed = True

    @property
    def _journal_path(self) -> Path:
        return self.options.results / f"journal-{self.options.name}.jsonl"

    @property
    def _old_journal(self) -> Path:
        """The journal of the last run, until a cell has begun."""
        return self._journal_path.with_suffix(".last")

    @property
    def tasks(self) -> list[Task]:
        """The cells that have no conclusion yet."""
        concluded = {**self._past.conclusions, **self._past.given_up}
        return [task_of(cell, self.options.deadline) for cell in self.cells if cell.id not in concluded]

    def setup(self, workers: int) -> Setup:
        """The setup of the engine; this also removes the logs of an earlier run in the results folder."""
        self._started = time.monotonic()
        self.options.results.mkdir(parents=True, exist_ok=True)
        if not self._resumed:
            self._settle()
            with contextlib.suppress(FileNotFoundError):
                self._journal_path.rename(self._old_journal)
            clear(self.options.results, self._journal_path.name)
        setup = setup_in(self.options.results, self._journal_path.name, self.tasks)
        begin(setup.journal, self._header, self._past)
        self._journal = Journal(setup.journal)
        return replace(
            setup,
            options=self.options,
            expectations=self._report.expectations,
            reruns=max(1, MAXIMUM_RERUNS // workers),
        )

    def concluded(self, cell_id: str, conclusion: Conclusion) -> None:
        """The engine calls this with the conclusion of a cell."""
        conclusion = self._past.with_earlier(cell_id, conclusion, self._report.expectations)
        status = self._report.expectations.status(cell_id, conclusion.outcome)
        # A plugin of the user may run a cell again: a good result does not take the place of a bad one.
        if cell_id not in self._conclusions or not status.acceptable:
            self._conclusions[cell_id] = conclusion
            self._write(event="concluded", cell=cell_id, **conclusion.as_json())

    def finish(self, controller: Controller | None) -> Report:
        """Write the report after the end of all cells."""
        report = self._report
        if controller:
            self._conclude(controller)
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

    def _conclude(self, controller: Controller) -> None:
        """Take all that the processes have found out into the report."""
        report = self._report
        conclusions = self._in_journal(controller.setup.journal) | self._conclusions
        self._write(event="finished")
        self.leave()
        never_run = _NEVER_RUN
        if controller.stopped:
            controller.gaps.append(controller.stopped)
            never_run = Conclusion(Outcome(Verdict.MISSING, reason=controller.stopped), attempts=0)
        report.problems += [*self._past.problems, *controller.gaps, *controller.problems]
        report.problems += controller.stats.exit_problems
        report.gaps = controller.gaps
        report.run_info = {**self._past.run_info} | controller.stats.run_info
        report.process_starts = self._past.process_starts + controller.stats.process_starts
        report.whole = report.whole and not controller.deselected
        conclusions |= self._past.given_up
        conclusions |= self._past.conclusions
        for cell in self.cells:
            if cell.id not in controller.deselected:
                found = conclusions.get(cell.id, never_run)
                report.add(cell, found.outcome, found.attempts, found.preceding_cells, found.repetition)

    def leave(self) -> None:
        """Close the journal."""
        if self._journal:
            self._journal.close()
        self._settle()

    def _settle(self) -> None:
        """Bring back the journal of the last run if no cell has begun since: its results are still there.

        1. A run is killed, after hours.
        2. A run without `--resume` puts its journal away, and is killed before its first cell.
        3. The next run comes here before it reads or writes a journal.
        """
        if not self._old_journal.exists():
            return
        if not any(one["event"] == "begin" for one in lines_of(self._journal_path, "event")):
            self._old_journal.rename(self._journal_path)
        elif is_unfinished(self._old_journal):
            words = f"its journal is {set_aside(self._old_journal)}"
            print(f"NOTE: the run before was killed, and can no longer be resumed; {words}", file=sys.stderr)
        else:
            self._old_journal.unlink()

    def _in_journal(self, journal: Path) -> dict[str, Conclusion]:
        """Conclusions for cells without one in an interrupted run: from the first run, or from all that ended."""
        outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
        for event in lines_of(journal, "event"):
            if event["event"] == "end":
                outcomes[event["cell"]].append(Outcome.from_json(event["outcome"]))
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
    options = prepared.options
    options.results.mkdir(parents=True, exist_ok=True)
    if not prepared.cells:
        return prepared.finish(None)
    # Imported here, because planning and listing cells does not need pytest.
    from .execution import execute

    try:
        setup = replace(prepared.setup(workers), cluster=cluster)
        controller = execute(setup, workers, prepared.concluded)
    except PytestOptionsError:
        prepared.leave()
        raise
    return prepared.finish(controller)


def task_of(cell: Cell, deadline: float) -> Task:
    if not isinstance(cell, CaseCell):
        return Task(cell.id, cell.implementation, cell.topology, deadline, cell.isolated)
    own = deadline if cell.case.deadline is None else min(cell.case.deadline, deadline)
    exclusive = bool(cell.case.exclusive)
    return Task(cell.id, cell.implementation, cell.topology, own, cell.isolated, cell.case.xla_flags, exclusive)


def clear(results: Path, journal: str) -> None:
    """Remove the logs and the journal of an earlier run from a results folder."""
    results.mkdir(parents=True, exist_ok=True)
    for old in (*results.glob("worker-*.log"), results / journal):
        old.unlink(missing_ok=True)


def setup_in(results: Path, journal: str, tasks: Sequence[Task]) -> Setup:
    return Setup(tuple(tasks), results.resolve(), results.resolve() / journal)


_NEVER_RUN = Conclusion(Outcome(Verdict.MISSING, reason="planned and never run"), attempts=0)


def _shard_fields(options: RunOptions, whole: Sequence[Cell]) -> dict[str, Any]:
    if not options.shard:
        return {}
    selection = {
        "count": len(whole),
        "hash": plan_digest(cell.id for cell in whole),
        # All of them: who has only the other shards can say which cells are missing.
        "cells": {cell.id: " ".join(cell.promises) for cell in whole},
    }
    return {"shard": {"number": options.shard.number, "of": options.shard.of}, "selection": selection}
