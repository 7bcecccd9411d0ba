"""Live progress: one line that updates on a terminal, otherwise a new line from time to time."""

from __future__ import annotations

import sys
import time
from typing import TextIO

SPARSE_SECONDS = 15.0


class Progress:
    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total = total
        self._stream = stream
        self._terminal = stream.isatty()
        self._done = 0
        self._unexpected = 0
        self._started = time.monotonic()
        self._shown = self._started

    def advance(self, cell_id: str, acceptable: bool) -> None:
        self._done += 1
        self._unexpected += not acceptable
        now = time.monotonic()
        line = f"{self._done}/{self._total} cells, {self._unexpected} unexpected, {now - self._started:.0f} s"
        if self._terminal:
            self._stream.write(f"\r\x1b[K{line}  {cell_id[:80]}")
            self._stream.flush()
        elif now - self._shown >= SPARSE_SECONDS or self._done == self._total:
            self._shown = now
            self._stream.write(line + "\n")
            self._stream.flush()

    def finish(self) -> None:
        """Leave the line that was updated."""
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()
