"""Every finished run on disk, one JSON line each before the next run starts, so that a command can go on.

A line has the words that say what ran, where and under which conditions; runs of other words are not read as these.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ..engine.journal import Journal, set_aside


class RunJournal:
    def __init__(self, path: Path, resume: bool) -> None:
        """Open a journal. One that is not gone on with is kept: what it has found out may have taken hours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        if path.exists() and not resume:
            set_aside(path)
        self._journal = Journal(path)
        # A killed process may have left half a line.
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._journal.end_line()

    def read(self) -> dict[tuple[str, ...], list[dict[str, Any]]]:
        """All runs by their words, also those that other processes have written meanwhile."""
        found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            # Lines of something else, or of another version of the suite, are no runs.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                data = json.loads(line)
                found.setdefault(tuple(map(str, data["run"])), []).append(dict(data["outcome"]))
        return found

    def add(self, outcome: dict[str, Any], *words: str) -> None:
        self._journal.write(run=words, outcome=outcome)

    def close(self) -> None:
        self._journal.close()
