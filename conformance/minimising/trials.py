"""Runs a cell once, alone in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.cell_runner import CellRunner
from ..engine.run import task_of
from ..oracle.verdicts import Outcome
from ..planning.cells import Cell


@contextmanager
def trials(deadline: float) -> Iterator[Callable[[Cell], Outcome]]:
    """The function that runs a cell. Each run has a process of its own: some failures depend on the process."""
    with TemporaryDirectory() as name:
        runner = CellRunner(Path(name) / "worker.log")
        yield lambda cell: runner.run_alone(task_of(cell, deadline))
