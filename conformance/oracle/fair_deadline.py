"""A cell's time limit, extended by the time for which a busy machine kept its process from running.

A hang and a busy machine look the same on a clock. Linux counts for each thread how long it could run and had no
processor, so the two differ: the threads of a process that hangs do not wait for a processor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

MOST = 4
"""A cell gets at most so many times its time limit: many threads that spin wait for processors, too."""

UNCOUNTED = 0.1
"""The first part of the time limit, for which no counts are read: nearly every cell ends within it."""


class FairDeadline:
    """The end of a cell that begins now, in these processes of this machine."""

    def __init__(self, seconds: float, *pids: int) -> None:
        self._seconds, self._pids = seconds, pids
        self._began = time.monotonic()
        self._waited_before: Mapping[int, Mapping[str, float]] | None = None

    def left(self) -> float:
        """The seconds that are left; 0 or less at the end."""
        left = self._began + self._seconds - time.monotonic()
        if left > 0 or not self._waited_before:
            return left
        # The processes of one cell wait for each other, so the one that was kept longest counts.
        kept = max(self._kept(pid, before) for pid, before in self._waited_before.items())
        return left + min(kept, (MOST - 1) * self._seconds)

    def pause(self) -> float:
        """The seconds for which to wait for an end of the cell before the next call of this; 0 or less at the end."""
        if self._waited_before is None:
            uncounted = self._began + UNCOUNTED * self._seconds - time.monotonic()
            if uncounted > 0:
                return uncounted
            self._waited_before = {pid: waited_for_processors(pid) for pid in self._pids}
        return self.left()

    @staticmethod
    def _kept(pid: int, before: Mapping[str, float]) -> float:
        # A new thread may have the number of one that has ended.
        return sum(
            max(0.0, seconds - before.get(thread, 0.0)) for thread, seconds in waited_for_processors(pid).items()
        )

    def wait(self, ends: Callable[[float], T | None]) -> T | None:
        """What `ends(seconds)` returns if that is not None, or None at the end."""
        while True:
            seconds = max(0.0, self.pause())
            if (status := ends(seconds)) is not None or seconds == 0:
                return status


def waited_for_processors(pid: int) -> dict[str, float]:
    """The seconds for which each thread of a process could run and had no processor; empty if the system counts none.

    Threads that have ended do not count any more.
    """
    waited = {}
    # A process has up to a hundred threads, and each cell asks: `pathlib` takes twice as long.
    threads = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(threads):
            path = f"{threads}/{thread}/schedstat"
            with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
                # On the processor, waiting for one (both in nanoseconds), and how often it ran.
                waited[thread] = int(file.read().split()[1]) / 1e9
    return waited
