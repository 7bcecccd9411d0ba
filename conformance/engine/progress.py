"""Live progress: one line that updates on a terminal, otherwise a new line from time to time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

SPARSE_SECONDS = 15.0


def in_place(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether lines can be drawn again in the stream, which is a terminal and not a pipe, a dumb one or a CI's log."""
    return stream.isatty() and environment.get("TERM", "dumb") != "dumb" and not environment.get("CI")


class Progress:
    def __init__(self, total: int, stream: TextIO = sys.stderr, redrawn: bool = True) -> None:
        self._total = total
        self._stream = stream
        self._terminal = redrawn and in_place(stream)
        self._done = 0
        self._unexpected = 0
        self._started = time.monotonic()
        self._shown = self._started

    def follow(self, journal: Path) -> None:
        """Lines show nothing of the cells that run."""

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
