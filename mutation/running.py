"""Runs cells one after the other, in this process's workers: those of a kind share one, and some have their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.engine.tasks import Kind, Task
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.worker.gang import Gang
from conformance.worker.processes import WorkerStartError

from .lines import hostcb_lines
from .processes import ForkedWorker


class Cells:
    """Runs cells. Every process finds hostcb by the environment and the path of this one."""

    def __init__(self, log: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._prepare = prepare
        self._worker: ForkedWorker | None = None
        self._kind: Kind | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def run(self, task: Task, deadline: float) -> Outcome:
        if task.in_several_processes:
            return self._run_in_gang(task, deadline)
        if task.isolated:
            self.end()
        if self._worker is None or self._worker.status is not None or self._kind != task.kind:
            self.end()
            self._worker, self._kind = ForkedWorker(task, self._log, self._prepare), task.kind
        worker = self._worker
        if not worker.ready:
            self.end()
            return Outcome(Verdict.CRASH, None, "the worker did not start: the import of hostcb, or its use, failed")
        outcome = worker.run(task, deadline)
        if task.isolated and outcome.verdict is Verdict.PASS:
            # Its end is part of the outcome.
            self._worker = None
            return worker.finish()
        if outcome.verdict in (Verdict.CRASH, Verdict.HANG):
            self.end()
        return outcome

    def end(self) -> None:
        """Kill the present worker: a program that hangs would not end."""
        worker, self._worker = self._worker, None
        if worker:
            worker.kill()

    def _run_in_gang(self, task: Task, deadline: float) -> Outcome:
        self.end()
        os.environ[hostcb_lines.CELL] = task.id
        try:
            gang = Gang(task.topology, task.implementation, self._log, task.xla_flags)
        except WorkerStartError as error:
            return Outcome(Verdict.CRASH, None, str(error))
        try:
            return gang.run(task.id, deadline)
        finally:
            if not gang.buried:
                gang.kill()
