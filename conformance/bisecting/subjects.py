"""What is asked of a release or a commit: cells or a script, run in another environment as often as needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..engine.cell_runner import CellRunner
from ..engine.preparation import SUPPORTED
from ..engine.run import task_of
from ..engine.tasks import Task
from ..planning.cells import parse_cell
from ..releases.probes import may_leave_something
from ..releases.release import ReleaseError
from ..spec.topology import WrongPlatformError
from ..spec.versions import version_matches
from ..spec.xla_flags import why_unknown
from ..worker.processes import OtherPython, WorkerStartError
from .samples import Sample, sample_of, untestable
from .scripts import environment_of, run_script


@dataclass(frozen=True)
class Site:
    """Where subjects run: an interpreter, the versions that it imports, and what else it finds."""

    python: OtherPython
    jax: str
    source: Path | None = None
    """A folder with packages that come before the installed ones."""


class Question(Protocol):
    """Runs subjects somewhere."""

    @property
    def subjects(self) -> Sequence[str]: ...

    @property
    def conditions(self) -> str:
        """What an outcome depends on, beside the subject and the place."""

    def ask(self, site: Site, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]: ...


@dataclass(frozen=True)
class Cells:
    subjects: tuple[str, ...]
    deadline: float
    log: Path
    verdict_alone: bool = False

    @property
    def conditions(self) -> str:
        return f"deadline {self.deadline:g}{', verdict alone' * self.verdict_alone}"

    def ask(self, site: Site, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        tasks = [task_of(parse_cell(cell, any_release=True), self.deadline) for cell in subjects]
        runner = CellRunner(self.log, python=site.python)
        try:
            # Cells of one topology share a worker process.
            for task in sorted(tasks, key=lambda task: (task.topology.name, task.implementation)):
                yield from ((task.id, sample) for sample in self._samples(runner, task, site, runs))
            runner.finish()
        finally:
            runner.abandon()

    def _samples(self, runner: CellRunner, task: Task, site: Site, runs: int) -> Iterator[Sample]:
        if reason := _why_not(site, task.implementation, task.xla_flags):
            yield untestable(reason)
            return
        for _ in range(runs):
            try:
                outcome, _ = runner.run(task)
            except WorkerStartError as error:
                raise ReleaseError(str(error)) from error
            except WrongPlatformError as error:
                yield untestable(str(error))
                return
            if may_leave_something(outcome):
                runner.abandon()
            sample = sample_of(outcome, self.verdict_alone)
            yield sample
            if sample.untestable:
                return


def _why_not(site: Site, implementation: str, xla_flags: Sequence[str]) -> str | None:
    """The reason if not even a worker for this cell can run."""
    if implementation == "hostcb" and not version_matches(site.jax, SUPPORTED):
        return f"hostcb needs JAX {SUPPORTED.removeprefix('>=')} or newer"
    return why_unknown(xla_flags, site.python.jaxlib)


@dataclass(frozen=True)
class Script:
    path: Path
    deadline: float
    end_alone: bool = False

    @property
    def subjects(self) -> tuple[str, ...]:
        return (str(self.path),)

    @property
    def conditions(self) -> str:
        # A script that was changed is another question.
        content = hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]
        return f"script {content}, deadline {self.deadline:g}{', verdict alone' * self.end_alone}"

    def ask(self, site: Site, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        environment = environment_of()
        if site.source:
            # The suite itself is not on the path of a script. The modules beside the script are, after the checkout.
            path = os.pathsep.join((str(site.source), str(self.path.resolve().parent)))
            environment |= {**site.python.environment({}), "PYTHONPATH": path}
        for subject in subjects:
            for _ in range(runs):
                sample = run_script(self.path, site.python.executable, environment, self.deadline, self.end_alone)
                yield subject, sample
                if sample.untestable:
                    break
