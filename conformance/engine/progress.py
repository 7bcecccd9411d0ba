"""How far a command is, where no terminal shows pytest's own progress: a line at once, and then from time to time."""

from __future__ import annotations

import sys
import time

SPARSE_SECONDS = 10.0

FIRST_RESULTS = 10
"""Seconds until the workers have imported JAX and made their devices."""


ENOUGH = 10
"""Cells before the rest is estimated: the first ones wait for their processes."""


class Progress:
    def __init__(self, total: int, workers: int = 1, what: str = "cell", unwanted: str = "not as expected") -> None:
        self._total = total
        self._what, self._unwanted = what, unwanted
        self._done = 0
        self._bad = 0
        # Now: pytest puts another one in its place while it runs a cell.
        self._stream = sys.stderr
        self._started = self._shown = time.monotonic()
        self._first = self._started
        where = f" on {workers} workers" if workers > 1 else ""
        self._write(f"{total:,} {what}{'s' * (total != 1)}{where}; the first results take about {FIRST_RESULTS} s")

    def advance(self, acceptable: bool) -> None:
        self._done += 1
        self._bad += not acceptable
        now = time.monotonic()
        if self._done == 1:
            self._first = now
        if self._done in (1, self._total) or now - self._shown >= SPARSE_SECONDS:
            self._shown = now
            line = f"{self._done:,}/{self._total:,} {self._what}s, {self._bad} {self._unwanted}"
            if self._done == self._total:
                line += f", {_in_words(now - self._started)}"
            elif self._done >= ENOUGH:
                # The start of the workers says nothing about the cells.
                left = (now - self._first) / (self._done - 1) * (self._total - self._done)
                line += f", about {_in_words(left)} left"
            self._write(line)

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
