"""Runs cells in worker processes, one cell at a time, and survives whatever they do to those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.engine.tasks import Kind, Task
from conformance.journal import Journal
from conformance.processes import WorkerProcess, WorkerStartError
from conformance.topology import QUICK_COMPILATION, WrongPlatformError, names
from conformance.verdicts import Outcome, Stage, Verdict

COMPANY = 5
"""How many of its predecessors a cell is reported with: enough to try it in company again."""


@dataclass
class Learnt:
    """What running cells has shown beside their outcomes, since it was last asked."""

    run_info: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What worker processes said of themselves, by topology."""
    exit_problems: list[str] = field(default_factory=list)
    """Workers that ran all their cells and then could not end."""
    process_starts: int = 0


@dataclass
class CellRunner:
    """Keeps one worker process in flight, for as long as cells of its kind come."""

    log: Path
    journal: Journal
    company: list[Task] = field(default_factory=list)
    """What has run in the process in flight."""
    _learnt: Learnt = field(default_factory=Learnt)
    _worker: WorkerProcess | None = None
    _kind: Kind | None = None
    """What the process in flight is made for."""
    _quick: Sequence[str] = QUICK_COMPILATION
    """Flags for XLA to compile in a quicker way, as far as it knows them."""
    _refused: dict[Kind, WorkerStartError | WrongPlatformError] = field(default_factory=dict)

    def run(self, task: Task) -> tuple[Outcome, tuple[Task, ...]]:
        """The outcome of a cell, and its company: the last cells before it in the same process.

        Raises what a worker raises when it cannot start: then nothing was learnt of the cell.
        """
        if task.isolated:
            return self.run_alone(task), ()
        if self._worker and (not self._worker.alive or self._kind != task.kind):
            self.finish()
        if self._worker is None:
            self._worker, self._kind = self._start(task), task.kind
        company = tuple(self.company[-COMPANY:])
        outcome = self._observe(self._worker, task)
        self.company.append(task)
        return outcome, company

    def run_alone(self, task: Task, after: Sequence[Task] = ()) -> Outcome:
        """A cell in a process of its own, or after those whose outcomes are of no interest now.

        Of an isolated cell the end of the process is part of the outcome.
        """
        worker = self._start(task)
        try:
            for predecessor in after:
                if worker.alive:
                    self._observe(worker, predecessor)
            outcome = self._observe(worker, task)
            if not worker.alive:
                return outcome
            ending = worker.finish()
        finally:
            if not worker.buried:
                worker.kill()
        if not task.isolated:
            self._note(worker, ending)
        elif ending.verdict is not Verdict.PASS and outcome.verdict is Verdict.PASS:
            return Outcome(ending.verdict, Stage.EXIT, ending.reason, outcome.seconds, signal=ending.signal)
        return outcome

    def finish(self) -> None:
        """Let the process in flight end."""
        worker, self._worker = self._worker, None
        self.company.clear()
        if worker and not worker.buried:
            # One that has ended between two cells says so here, too.
            self._note(worker, worker.finish())

    def abandon(self) -> None:
        """End the process in flight at once, whatever it does."""
        worker, self._worker = self._worker, None
        if worker and not worker.buried:
            worker.kill()

    def learnt(self) -> Learnt:
        learnt, self._learnt = self._learnt, Learnt()
        return learnt

    def _note(self, worker: WorkerProcess, ending: Outcome) -> None:
        if ending.verdict is not Verdict.PASS:
            self._learnt.exit_problems.append(f"{worker.topology.name}: {ending.label}: {ending.reason}")

    def _start(self, task: Task) -> WorkerProcess:
        # Thousands of cells of a kind that cannot start would each wait for the same refusal.
        if refusal := self._refused.get(task.kind):
            raise refusal
        try:
            worker = self._start_or_try_again(task)
        except (WorkerStartError, WrongPlatformError) as error:
            self._refused[task.kind] = error
            raise
        self._learnt.run_info[task.topology.name] = worker.run_info
        return worker

    def _start_or_try_again(self, task: Task) -> WorkerProcess:
        for last_time in (False, True):
            self._learnt.process_starts += 1
            try:
                return WorkerProcess(task.topology, task.implementation, self.log, task.xla_flags, quick=self._quick)
            except WorkerStartError as error:
                # XLA ends a process over flags that it does not know, and names them.
                self._quick = tuple(flag for flag in self._quick if not names(flag, str(error)))
                # A machine with too much to do for a moment must not cost all cells of a kind.
                if last_time:
                    raise
        raise AssertionError("unreachable")

    def _observe(self, worker: WorkerProcess, task: Task) -> Outcome:
        self.journal.write(event="begin", cell=task.id)
        outcome = worker.run(task.id, task.deadline)
        self.journal.write(event="end", cell=task.id, outcome=outcome.as_json())
        return outcome
