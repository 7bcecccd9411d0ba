"""Runs cells and tests one after the other, in workers: those of a kind share one, and some have their own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.engine.tasks import Kind
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.spec.topology import WrongPlatformError
from conformance.worker.process_group import ProcessGroup, start_group
from conformance.worker.processes import WorkerStartError

from . import tester
from .lines import hostcb_lines
from .pool import Check, Test
from .processes import fork_worker, work_on_cells


class Runner:
    """Every process finds hostcb by the environment and the path of this one."""

    def __init__(self, log: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._prepare = prepare
        self._worker: ProcessGroup | None = None
        self._kind: Kind | tuple[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def run(self, check: Check, deadline: float) -> Outcome:
        alone = check.isolated or check.in_several_processes
        if alone or self._worker is None or not self._worker.alive or self._kind != check.kind:
            self.end()
            try:
                self._worker, self._kind = self._start(check), check.kind
            except (WorkerStartError, WrongPlatformError) as error:
                return Outcome(Verdict.CRASH, None, f"the import of hostcb, or its use, failed: {error}")
        worker = self._worker
        outcome = worker.run(check.id, deadline)
        if check.isolated and outcome.verdict is Verdict.PASS and not worker.buried:
            # Its end is part of the outcome.
            self._worker = None
            return worker.finish()
        if alone:
            self.end()
        return outcome

    def end(self) -> None:
        """Kill the present worker: a program that hangs would not end."""
        worker, self._worker = self._worker, None
        if worker and not worker.buried:
            worker.kill()

    def _start(self, check: Check) -> ProcessGroup:
        if isinstance(check, Test):
            return fork_worker(tester.main, self._log)
        if not check.in_several_processes:
            return fork_worker(functools.partial(work_on_cells, check, self._prepare), self._log)
        os.environ[hostcb_lines.CELL] = check.id
        return start_group(check.topology, check.implementation, self._log, check.xla_flags)
