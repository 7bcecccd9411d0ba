"""Runs cells in the environment of a release or of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..engine.cell_runner import CellRunner
from ..engine.tasks import Task, in_running_order
from ..oracle.verdicts import Outcome, Verdict
from ..spec.topology import WrongPlatformError
from ..spec.versions import HOSTCB_NEEDS, version_matches
from ..spec.xla_flags import why_unknown
from ..worker.processes import WorkerStartError
from .environments import Environment, ReleaseError


def run_cells(
    environment: Environment, cells: Mapping[str, int], deadline: float, log: Path
) -> Iterator[tuple[str, Outcome]]:
    """Run each cell so often; the verdict is `unsupported`, with the reason, if the release lacks what it needs.

    Cells that share a worker process run one after the other, so the order is not that of `cells`. After each run that
    failed, the next one has a new worker. Raises `ReleaseError` if no worker starts in the environment.
    """
    # Imported here, as all that imports JAX: the help of a command needs none.
    from ..engine.run import task_of
    from ..planning.cells import parse_cell

    tasks = in_running_order(task_of(parse_cell(cell, any_release=True), deadline) for cell in cells)
    runner = CellRunner(log, python=environment)
    try:
        for task in tasks:
            for _ in range(cells[task.id]):
                yield task.id, _outcome(environment, runner, task)
        # A process that cannot end says nothing of one cell; it is in the log.
        runner.finish()
    finally:
        runner.abandon()


def _outcome(environment: Environment, runner: CellRunner, task: Task) -> Outcome:
    lacking = why_unknown(task.xla_flags, environment.jaxlib)
    if task.implementation == "hostcb" and not version_matches(environment.jax, HOSTCB_NEEDS):
        lacking = f"hostcb needs JAX {HOSTCB_NEEDS.removeprefix('>=')} or newer"
    if task.topology.in_several_processes:
        lacking = "several processes of one cell have the interpreter of the command: `run` in that release has it"
    try:
        if lacking:
            # Not even a worker for this cell can run there.
            raise WrongPlatformError(lacking)
        outcome, _ = runner.run(task)
    except WorkerStartError as error:
        raise ReleaseError(f"JAX {environment.jax}: {error}") from error
    except WrongPlatformError as error:
        return Outcome(Verdict.UNSUPPORTED, None, str(error), anomaly="not applicable")
    ran = outcome.verdict is not Verdict.UNSUPPORTED or outcome.stage is not None
    if ran and outcome.verdict is not Verdict.PASS:
        # It may leave something in its process that fails the next cell.
        runner.abandon()
    return outcome
