"""A cell that needs a quiet machine runs while no other pytest process of the run has a cell.

Each process shares one lock while it runs a cell, and an exclusive cell has the lock alone. A second lock is the gate
before the first one: behind an exclusive cell that waits nobody else enters, so it waits for one cell of each process
at most.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from ...expectations.entries import Expectation
from ...oracle.verdicts import Verdict
from ..tasks import Task

GATE, CELLS = "exclusive-gate.lock", "exclusive-cells.lock"


def runs_exclusively(task: Task, known: Expectation | None) -> bool:
    """Whether others wait for the end of a cell. They need not if it is known to hang: it measures nothing then."""
    hangs = known is not None and known.verdict == Verdict.HANG.value and not known.intermittent
    return task.exclusive and not hangs


class Turns:
    """The turns of one process, by two files in a folder that all processes of the run have."""

    def __init__(self, folder: Path) -> None:
        self._gate = (folder / GATE).open("ab")
        self._cells = (folder / CELLS).open("ab")

    @contextlib.contextmanager
    def turn(self, exclusive: bool) -> Iterator[None]:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._cells, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._cells, fcntl.LOCK_UN)

    def close(self) -> None:
        self._gate.close()
        self._cells.close()
