"""Runs cells in worker processes, one cell at a time, and goes on after a crash or a hang of a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..oracle.verdicts import Outcome, Stage, Verdict
from ..reports.journal import Journal
from ..spec.platforms import platform_named
from ..spec.topology import WrongPlatformError
from ..spec.xla_flags import QUICK_COMPILATION, names
from ..worker.process_group import ProcessGroup, start_group
from ..worker.processes import OtherPython, WorkerStartError
from ..worker.transport import Cluster
from .tasks import Kind, Task

MOST_PRECEDING = 5
"""The number of earlier cells that are reported with a cell, and run before it again."""


@dataclass
class WorkerStats:
    """Facts about the worker processes, beside the outcomes of cells, since they were last taken."""

    run_info: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The environment that worker processes reported, by topology."""
    exit_problems: list[str] = field(default_factory=list)
    """Reports of workers that ran all their cells and then could not end."""
    process_starts: int = 0


@dataclass
class CellRunner:
    """Keeps one worker process, as long as the next cells need a worker of its kind."""

    log: Path
    journal: Journal | None = None
    python: OtherPython | None = None
    """The interpreter of the workers, if they run in another environment."""
    cluster: Cluster | None = None
    """Where the processes of a topology are, if not all on this machine."""
    preceding_cells: list[Task] = field(default_factory=list)
    """The cells that have run in the present process."""
    _stats: WorkerStats = field(default_factory=WorkerStats)
    _worker: ProcessGroup | None = None
    _kind: Kind | None = None
    """The kind of the present process."""
    _quick: Sequence[str] = QUICK_COMPILATION
    """Flags for quick compilation, without those that this XLA has refused."""
    failed_twice: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The ways to fail, with the number of cells that have failed so in two processes."""
    by_chance: set[tuple[str, ...]] = field(default_factory=set)
    """The ways to fail that a second run of a cell has not had."""
    _tried: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    """The outcomes of trials of callbacks, by implementation, callback, layout and topology."""
    _refused: dict[Kind, WorkerStartError | WrongPlatformError] = field(default_factory=dict)

    def run(self, task: Task) -> tuple[Outcome, tuple[Task, ...]]:
        """The outcome of a cell, and the last cells before it in the same process.

        Raises the worker's error if a worker cannot start: then the cell did not run.
        """
        if task.isolated:
            if outcome := self._without_support(task):
                self._write("begin", task)
                self._write("end", task, outcome)
            return outcome or self.run_alone(task), ()
        worker = self._shared(task)
        preceding = tuple(self.preceding_cells[-MOST_PRECEDING:])
        outcome = self._observe(worker, task)
        self.preceding_cells.append(task)
        return outcome, preceding

    def _shared(self, task: Task) -> ProcessGroup:
        """The process for cells of this kind."""
        if self._worker and (not self._worker.alive or self._kind != task.kind):
            self.finish()
        if self._worker is None:
            self._worker, self._kind = self._start(task), task.kind
        return self._worker

    def _without_support(self, task: Task) -> Outcome | None:
        """The outcome of an isolated case whose callback the platform refuses; None if the case can run.

        Each such case would cost a process. So its callback is tried in a shared one, once for each layout.
        """
        if task.topology.platform == "cpu" or task.topology.in_several_processes:
            return None
        implementation, callback, program, topology = task.id.split("/")
        key = (implementation, callback, program.rpartition(".")[2], topology)
        if key not in self._tried:
            worker = self._shared(replace(task, isolated=False, xla_flags=()))
            self._tried[key] = worker.run(task.id, task.deadline, trial=True)
        outcome = self._tried[key]
        return outcome if outcome.verdict is Verdict.UNSUPPORTED else None

    def run_alone(self, task: Task, after: Sequence[Task] = ()) -> Outcome:
        """Run a cell in a process of its own, after the cells in `after`, whose outcomes are ignored.

        For an isolated cell, the end of the process is part of the outcome.
        """
        if self.cluster or platform_named(task.topology.platform).most_workers == 1:
            # The devices are the shared process's until it ends; and the hosts of a job have one place to meet.
            self.finish()
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
        """Let the present process end."""
        worker, self._worker = self._worker, None
        self.preceding_cells.clear()
        if worker and not worker.buried:
            # This also reports a process that has ended between two cells.
            self._note(worker, worker.finish())

    def abandon(self) -> None:
        """Kill the present process at once."""
        worker, self._worker = self._worker, None
        if worker and not worker.buried:
            worker.kill()

    def take_stats(self) -> WorkerStats:
        stats, self._stats = self._stats, WorkerStats()
        return stats

    def _note(self, worker: ProcessGroup, ending: Outcome) -> None:
        if ending.verdict is not Verdict.PASS:
            words = f"{worker.name}: {ending.label}: {ending.reason}"
            self._stats.exit_problems.append(words)
            if self.journal:
                self.journal.write(event="problem", words=words)

    def _start(self, task: Task) -> ProcessGroup:
        # Without this, thousands of cells of a kind that cannot start would each wait for the same error.
        if refusal := self._refused.get(task.kind):
            raise refusal
        try:
            worker = self._start_or_try_again(task)
        except (WorkerStartError, WrongPlatformError) as error:
            self._refused[task.kind] = error
            raise
        self._stats.run_info[task.topology.name] = worker.run_info
        try:
            if self.journal:
                self.journal.write(event="start", topology=task.topology.name, run_info=worker.run_info)
        except OSError:
            # Nobody else knows of this process yet.
            worker.kill()
            raise
        return worker

    def _start_or_try_again(self, task: Task) -> ProcessGroup:
        for last_time in (False, True):
            self._stats.process_starts += 1
            try:
                return start_group(
                    *(task.topology, task.implementation, self.log, task.xla_flags),
                    quick=self._quick,
                    python=self.python,
                    cluster=self.cluster,
                )
            except WorkerStartError as error:
                # XLA ends a process with unknown flags, and names the flags.
                self._quick = tuple(flag for flag in self._quick if not names(flag, str(error)))
                # A short overload of the machine must not cost all cells of a kind.
                if last_time:
                    raise
        raise AssertionError("unreachable")

    def _observe(self, worker: ProcessGroup, task: Task) -> Outcome:
        self._write("begin", task)
        outcome = worker.run(task.id, task.deadline)
        self._write("end", task, outcome)
        return outcome

    def _write(self, event: str, task: Task, outcome: Outcome | None = None) -> None:
        if self.journal:
            self.journal.write(event=event, cell=task.id, **({"outcome": outcome.as_json()} if outcome else {}))
