"""Runs a cell once, alone in a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.cell_runner import CellRunner
from ..engine.journal import Journal
from ..engine.run import task_of
from ..oracle.verdicts import Outcome
from ..planning.cells import Cell


class Trials:
    def __init__(self, folder: Path, deadline: float) -> None:
        self.journal = Journal(folder / "journal.jsonl")
        self._runner = CellRunner(folder / "worker.log", self.journal)
        self._deadline = deadline

    def run(self, cell: Cell) -> Outcome:
        """The outcome of one run. Each run has a process of its own: some failures depend on the process."""
        return self._runner.run_alone(task_of(cell, self._deadline))


@contextmanager
def trials(deadline: float) -> Iterator[Trials]:
    """Trials that leave no files behind."""
    with TemporaryDirectory() as folder:
        found = Trials(Path(folder), deadline)
        try:
            yield found
        finally:
            found.journal.close()
