"""Shows how far a run is where no terminal does: a line at once, and then from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator

import pytest

SPARSE_SECONDS = 10.0


class Progress:
    """A plugin of pytest in place of its dots and of xdist's lines, which say nothing in a log."""

    def __init__(self, total: int, workers: int) -> None:
        self._total = total
        self._done = self._bad = 0
        # Now: pytest puts another one in its place while it runs a cell.
        self._stream = sys.stderr
        self._started = self._first = self._shown = time.monotonic()
        where = f" on {workers} workers" if workers > 1 else ""
        self._write(f"{total:,} cell{'s' * (total != 1)}{where}; the first results take about 10 s")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # xdist then does as without a terminal.
        if distributing := session.config.pluginmanager.getplugin("dsession"):
            distributing.terminal = None

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
        category, _, _ = yield
        return category, "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        now = time.monotonic()
        self._done += 1
        self._bad += report.failed
        line = f"{self._done:,}/{self._total:,} cells, {self._bad} not as expected"
        if self._done == 1:
            # The start of the workers says nothing about the cells.
            self._first = now
        elif self._done == self._total:
            line += f", {_in_words(now - self._started)}"
        elif now - self._shown >= SPARSE_SECONDS:
            left = (now - self._first) / (self._done - 1) * (self._total - self._done)
            line += f", about {_in_words(left)} left"
        else:
            return
        self._shown = now
        self._write(line)

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
