"""How far a command is whose cells are no items of pytest: a line from time to time."""

from __future__ import annotations

import sys
import time

SPARSE_SECONDS = 15.0


class Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._unexpected = 0
        self._started = self._shown = time.monotonic()

    def advance(self, cell_id: str, acceptable: bool) -> None:
        self._done += 1
        self._unexpected += not acceptable
        now = time.monotonic()
        if now - self._shown >= SPARSE_SECONDS or self._done == self._total:
            self._shown = now
            line = f"{self._done}/{self._total} cells, {self._unexpected} unexpected, {now - self._started:.0f} s"
            print(line, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """There is nothing to clear: each line stays."""
