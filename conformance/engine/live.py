"""A view of a run in the terminal, drawn in place: how far it is, how fast, and which cells are slow."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from .progress import Progress, in_place

REDRAWN = 0.5
"""The seconds from one drawing to the next."""

SLOW = 5.0
"""The seconds after which a cell that runs is shown."""

MOST_SLOW = 4
MOST_UNEXPECTED = 3
"""How many cells of each kind are shown at most."""

WINDOW = 60.0
"""The rate is that of the last seconds, since the cells that take a process each come together."""

USUAL = (80, 24)
"""The columns and lines of a terminal that does not know its size."""


class Picture:
    """What is known of a run, as lines of text. Times are those of one clock, in seconds."""

    def __init__(self, total: int, now: float) -> None:
        self._total = total
        self._began = now
        self._running: dict[str, float] = {}
        self._concluded: dict[str, bool] = {}
        self._ends: deque[float] = deque()

    def began(self, cell: str, now: float) -> None:
        self._running[cell] = now

    def ended(self, cell: str) -> None:
        self._running.pop(cell, None)

    def concluded(self, cell: str, acceptable: bool, now: float) -> None:
        self.ended(cell)
        if cell not in self._concluded:
            self._ends.append(now)
        # A plugin may run a cell again: a good result does not take the place of a bad one.
        self._concluded[cell] = acceptable and self._concluded.get(cell, True)

    def lines(self, now: float, width: int, height: int) -> list[str]:
        """The view in a terminal of so many columns and lines."""
        unexpected = [cell for cell, acceptable in self._concluded.items() if not acceptable]
        found = [self._head(now, width, len(unexpected))]
        slow = sorted((began, cell) for cell, began in self._running.items() if now - began >= SLOW)
        if self._running:
            found.append(f"{len(self._running)} running{', the slowest:' if slow else ''}")
        found += [f"  {long(now - began)}  {cell}" for began, cell in slow[:MOST_SLOW]]
        if unexpected:
            found.append("unexpected, the last:" if len(unexpected) > 1 else "unexpected:")
            found += [f"  {cell}" for cell in unexpected[-MOST_UNEXPECTED:]]
        return [_cut(line, width) for line in found[: max(1, height - 1)]]

    def _head(self, now: float, width: int, unexpected: int) -> str:
        done = len(self._concluded)
        parts = [f"{done:,}/{self._total:,} cells", f"{unexpected:,} unexpected"]
        rate = self._rate(now)
        if rate and done < self._total:
            parts.append(f"about {long((self._total - done) / rate)} left")
        if rate:
            parts.append(f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute")
        parts.append(long(now - self._began))
        while len(parts) > 1 and len(", ".join(parts)) > width:
            parts.pop()
        return ", ".join(parts)

    def _rate(self, now: float) -> float:
        while self._ends and now - self._ends[0] > WINDOW:
            self._ends.popleft()
        seconds = min(now - self._began, WINDOW)
        return len(self._ends) / seconds if seconds > 0 else 0.0


def long(seconds: float) -> str:
    """A duration in the two largest units that it has."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _cut(line: str, width: int) -> str:
    # A cell's id may have any characters: none of them moves the cursor.
    shown = "".join(character if character.isprintable() else "?" for character in line)
    return shown if len(shown) <= width else (shown[: max(0, width - 3)] + "...")[:width]


class LiveView:
    """Draws a picture again and again, in a thread of its own, until it is finished."""

    def __init__(
        self,
        total: int,
        stream: TextIO,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._colours = not environment.get("NO_COLOR")
        self._clock = clock
        self._picture = Picture(total, clock())
        self._drawn = 0
        self._journal: Path | None = None
        self._read = 0
        self._rest = b""
        # The process may get Ctrl-C in the middle of a drawing.
        self._lock = threading.RLock()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._draw_again_and_again, name="conformance-live", daemon=True)

    def follow(self, journal: Path) -> None:
        """Show the cells that begin and end from now on, by the journal that all processes of the run write."""
        self._journal, self._read = journal, journal.stat().st_size if journal.exists() else 0
        self._thread.start()

    def advance(self, cell_id: str, acceptable: bool) -> None:
        with self._lock:
            self._picture.concluded(cell_id, acceptable, self._clock())

    def finish(self) -> None:
        """Leave the last state in the terminal, without the cells that run."""
        if self._finished.is_set():
            return
        self._finished.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.draw(height=2)

    def draw(self, height: int | None = None) -> None:
        with self._lock:
            self._read_journal()
            columns, lines = self._size()
            found = self._picture.lines(self._clock(), max(1, columns - 1), height or lines)
            up = f"\x1b[{self._drawn}A\r" if self._drawn else ""
            self._drawn = len(found)
            self._write(f"{up}\x1b[J" + "".join(f"{self._coloured(line)}\n" for line in found))

    def _size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            # With `--live always` it may be a pipe.
            columns, lines = 0, 0
        return columns or USUAL[0], lines or USUAL[1]

    def _coloured(self, line: str) -> str:
        bad = self._colours and line.startswith("unexpected")
        return f"\x1b[31m{line}\x1b[0m" if bad else line

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone, and the run goes on without it.
            self._finished.set()

    def _draw_again_and_again(self) -> None:
        while not self._finished.wait(REDRAWN):
            self.draw()

    def _read_journal(self) -> None:
        try:
            if self._journal is None:
                return
            with self._journal.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        self._read += len(new)
        # Another process may be in the middle of its line.
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            self._note(line)

    def _note(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            cell, what = event["cell"], event["event"]
        except (ValueError, KeyError, TypeError):
            # The line of a process that was killed, or one about something else than a cell.
            return
        if what == "begin":
            self._picture.began(cell, self._clock())
        elif what == "end":
            self._picture.ended(cell)


CHOICES = ("auto", "always", "never")


def progress_of(live: str, total: int, stream: TextIO | None = None) -> Progress | LiveView:
    """The progress of a run, as the option `--live` asks for it."""
    stream = stream or sys.stderr
    if live == "always" or (live == "auto" and in_place(stream)):
        return LiveView(total, stream)
    return Progress(total, stream, redrawn=False)
