"""How far a command is, where no terminal shows pytest's own progress: a line at once, and then from time to time."""

from __future__ import annotations

import sys
import time

SPARSE_SECONDS = 10.0

FIRST_RESULTS = 10
"""Seconds until the workers have imported JAX and made their devices."""


class Progress:
    def __init__(self, total: int, workers: int = 1) -> None:
        self._total = total
        self._done = 0
        self._unexpected = 0
        # Now: pytest puts another one in its place while it runs a cell.
        self._stream = sys.stderr
        self._started = self._shown = time.monotonic()
        where = f" on {workers} workers" if workers > 1 else ""
        self._write(f"{total:,} cell{'s' * (total != 1)}{where}; the first results take about {FIRST_RESULTS} s")

    def advance(self, acceptable: bool) -> None:
        self._done += 1
        self._unexpected += not acceptable
        now = time.monotonic()
        if now - self._shown >= SPARSE_SECONDS or self._done == self._total:
            self._shown = now
            seconds = now - self._started
            left = seconds / self._done * (self._total - self._done)
            end = f"about {_in_words(left)} left" if self._done < self._total else _in_words(seconds)
            self._write(f"{self._done:,}/{self._total:,} cells, {self._unexpected} not as expected, {end}")

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
