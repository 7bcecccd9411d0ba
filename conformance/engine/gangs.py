"""The gang for a cell: on this machine, or on the hosts of a cluster's job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..worker.gang import Gang
from ..worker.links import Cluster
from ..worker.processes import OtherPython, WorkerStartError
from .tasks import Task


def start_gang(
    task: Task,
    log: Path,
    quick: Sequence[str],
    histories: bool,
    python: OtherPython | None,
    cluster: Cluster | None,
) -> Gang:
    if python:
        raise WorkerStartError(
            f"{task.id} needs several processes, and these have the interpreter of the run: run it there"
        )
    where = {"links": cluster.start, "coordinator": cluster.coordinator} if cluster else {}
    return Gang(task.topology, task.implementation, log, task.xla_flags, quick=quick, histories=histories, **where)  # type: ignore[arg-type]
