"""Runs cells and tests one after the other, in workers: those of a kind share one, and some have their own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.engine.tasks import Kind, Task
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.worker.process_group import ProcessGroup
from conformance.worker.processes import WorkerStartError

from . import tester
from .lines import hostcb_lines
from .pool import Check, Test
from .processes import ForkedWorker, work_on_cells


class Runner:
    """Every process finds hostcb by the environment and the path of this one."""

    def __init__(self, log: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._prepare = prepare
        self._worker: ForkedWorker | None = None
        self._kind: Kind | tuple[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def run(self, check: Check, deadline: float) -> Outcome:
        if isinstance(check, Task) and check.in_several_processes:
            return self._run_in_gang(check, deadline)
        if check.isolated:
            self.end()
        if self._worker is None or self._worker.status is not None or self._kind != check.kind:
            self.end()
            work = tester.main if isinstance(check, Test) else functools.partial(work_on_cells, check, self._prepare)
            self._worker, self._kind = ForkedWorker(work, self._log), check.kind
        worker = self._worker
        if not worker.ready:
            self.end()
            return Outcome(Verdict.CRASH, None, "the worker did not start: the import of hostcb, or its use, failed")
        outcome = worker.run(check.id, deadline)
        if check.isolated and outcome.verdict is Verdict.PASS:
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
            group = ProcessGroup(task.topology, task.implementation, self._log, task.xla_flags)
        except WorkerStartError as error:
            return Outcome(Verdict.CRASH, None, str(error))
        try:
            return group.run(task.id, deadline)
        finally:
            if not group.buried:
                group.kill()
