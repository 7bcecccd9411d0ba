"""Cells as pytest's items, and the translation of their outcomes to pytest's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from ...expectations.entries import Expectations
from ...oracle.verdicts import ExpectationStatus, Outcome, Verdict
from ...reports.journal import Journal
from ...spec.topology import WrongPlatformError
from ...worker.processes import WorkerStartError
from ..cell_runner import CellRunner, WorkerStats
from ..conclusions import Conclusion, run_repeatedly, run_with_second_chance
from ..tasks import Setup, Task
from .exclusive import Turns, runs_exclusively

MESSAGE = "conformance"
"""The property of an item's report that holds the message to the controller, as JSON."""


class UnexpectedOutcomeError(Exception):
    """The outcome of a cell is not the expected one."""


class CellsRun:
    """The cells that this pytest process runs, one after another."""

    def __init__(self, setup: Setup, name: str) -> None:
        self.tasks = setup.tasks
        self.expectations = setup.expectations or Expectations()
        self._judged = setup.expectations is not None
        self._reruns_left = setup.reruns
        self._repeat = setup.options.repeat
        self._turns = Turns(setup.logs)
        self._journal = Journal(setup.journal)
        log = setup.logs / f"worker-{name}.log"
        self._runner = CellRunner(log, self._journal, cluster=setup.cluster)

    def run(self, task: Task) -> Conclusion:
        known = self.expectations.of(task.id) if self._judged else None
        with self._turns.turn(runs_exclusively(task, known)):
            return self._run(task)

    def _run(self, task: Task) -> Conclusion:
        if self._repeat > 1:
            return run_repeatedly(task, self._runner, self.expectations, self._repeat)
        if not self._judged or not self._reruns_left:
            return Conclusion(self._runner.run(task)[0])
        conclusion = run_with_second_chance(task, self._runner, self.expectations)
        self._reruns_left -= conclusion.attempts > 1
        return conclusion

    def status(self, task: Task, outcome: Outcome) -> ExpectationStatus:
        return self.expectations.status(task.id, outcome) if self._judged else ExpectationStatus.AS_EXPECTED

    def take_stats(self) -> WorkerStats:
        return self._runner.take_stats()

    def close(self, interrupted: bool) -> WorkerStats:
        """Let the last worker process end; kill it if the run was `interrupted`."""
        if interrupted:
            self._runner.abandon()
        else:
            self._runner.finish()
        self._journal.close()
        self._turns.close()
        return self._runner.take_stats()


_TOLD_WITHOUT_STACK = (UnexpectedOutcomeError, WorkerStartError, WrongPlatformError, pytest.xfail.Exception)


class CellItem(pytest.Item):
    """One cell. Its pytest outcome: passed as expected, xfailed for a known failure, skipped if unsupported."""

    def __init__(self, *, task: Task, cells: CellsRun, **options: Any) -> None:
        super().__init__(**options)
        self._task = task
        self._cells = cells

    def runtest(self) -> None:
        message: dict[str, Any] = {"cell": self._task.id}
        try:
            conclusion = self._cells.run(self._task)
            message["conclusion"] = conclusion.as_json()
        except (WorkerStartError, WrongPlatformError) as error:
            message["no_start"] = str(error)
            raise
        except OSError as error:
            # Such as a full disk, on which the journal is.
            message["no_start"] = f"a cell was not run: {error}"
            raise
        finally:
            message["stats"] = dataclasses.asdict(self._cells.take_stats())
            # JSON is ASCII here: a witness may quote characters that cannot be encoded.
            self.user_properties.append((MESSAGE, json.dumps(message)))
        self._tell_pytest(conclusion.outcome)

    def _tell_pytest(self, outcome: Outcome) -> None:
        entry = self._cells.expectations.of(self._task.id)
        status = self._cells.status(self._task, outcome)
        if status is ExpectationStatus.KNOWN_FAILURE and entry:
            reason = f"{outcome.label}: {' '.join(entry.reason.split())} {entry.link}"
            if outcome.verdict is Verdict.UNSUPPORTED:
                pytest.skip(reason)
            pytest.xfail(reason)
        if not status.acceptable:
            stage = f" at {outcome.stage.value}" if outcome.stage else ""
            expected = entry.verdict if entry else Verdict.PASS.value
            words = status.value.replace("_", " ")
            raise UnexpectedOutcomeError(f"{words}: {outcome.label}{stage} (expected {expected})\n{outcome.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The witness alone: the stack of this process shows nothing about the cell, and takes pytest long to write."""
        if isinstance(excinfo.value, _TOLD_WITHOUT_STACK):
            return str(excinfo.value).encode(errors="backslashreplace").decode()
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        # Not only the name: pytest would take its dots for separators of classes.
        return self.path, None, f"cell {self.name}"


class CellsFile(pytest.File):
    """All cells of a run, in running order."""

    def __init__(self, *, cells: CellsRun, **options: Any) -> None:
        super().__init__(**options)
        self._cells = cells

    def collect(self) -> Iterable[CellItem]:
        for task in self._cells.tasks:
            yield CellItem.from_parent(self, name=task.id, task=task, cells=self._cells)
