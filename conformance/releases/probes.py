"""Runs cells in the environment of a release."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.cell_runner import CellRunner
from ..engine.preparation import SUPPORTED
from ..engine.run import task_of
from ..engine.tasks import Task, in_running_order
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import parse_cell
from ..spec.topology import WrongPlatformError
from ..spec.versions import version_matches
from ..spec.xla_flags import why_unknown
from ..worker.processes import OtherPython, WorkerStartError
from ..worker.stress import stress as stressed
from .environments import Environment
from .folders import sources
from .release import ReleaseError


@dataclass(frozen=True)
class Probe:
    """One run of one cell in one environment."""

    cell: str
    outcome: Outcome
    """The verdict is `unsupported`, with the reason, if the release lacks what the cell needs."""


def probe(
    environment: Environment,
    cells: Sequence[str],
    *,
    repeat: int = 1,
    deadline: float = 60.0,
    log: Path,
    stress: bool = False,
) -> Iterator[Probe]:
    """Run cells there, each `repeat` times in one worker process, or in a process of its own if the cell is isolated.

    Cells that share a worker run one after the other, so the order is not that of `cells`. After each run that failed,
    the next one has a new worker. Raises `UnknownCellError` for the id of no cell, and
    `ReleaseError` if no worker starts in the environment.
    """
    tasks = in_running_order(task_of(parse_cell(cell, any_release=True), deadline) for cell in cells)
    python = OtherPython(environment.python, environment.release.jaxlib, sources())
    runner = CellRunner(log, python=python)
    busy = stressed() if stress else contextlib.nullcontext()
    try:
        with busy:
            for task in tasks:
                for _ in range(repeat):
                    yield Probe(task.id, _outcome(environment, runner, task))
        # A process that cannot end says nothing of one cell; it is in the log.
        runner.finish()
    finally:
        runner.abandon()


def _outcome(environment: Environment, runner: CellRunner, task: Task) -> Outcome:
    if reason := _why_not(environment, task):
        return Outcome(Verdict.UNSUPPORTED, None, reason, anomaly="not applicable")
    try:
        outcome, _ = runner.run(task)
    except WorkerStartError as error:
        raise ReleaseError(f"JAX {environment.release.label}: {error}") from error
    except WrongPlatformError as error:
        return Outcome(Verdict.UNSUPPORTED, None, str(error), anomaly="not applicable")
    if may_leave_something(outcome):
        runner.abandon()
    return outcome


def may_leave_something(outcome: Outcome) -> bool:
    """Whether a run may leave something in its process that fails the next run there, of whatever cell."""
    ran = outcome.verdict is not Verdict.UNSUPPORTED or outcome.stage is not None
    return ran and outcome.verdict is not Verdict.PASS


def _why_not(environment: Environment, task: Task) -> str | None:
    """The reason if not even a worker for this cell can run with this release."""
    release = environment.release
    if task.implementation == "hostcb" and not version_matches(release.jax, SUPPORTED):
        return f"hostcb needs JAX {SUPPORTED.removeprefix('>=')} or newer"
    return why_unknown(task.xla_flags, release.jaxlib)
