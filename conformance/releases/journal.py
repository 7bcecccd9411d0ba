"""Every finished run on disk, one JSON line each before the next run starts, so that a command can go on."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ..engine.journal import Journal, set_aside


class RunJournal:
    """Runs by the words that say what ran, where and under which conditions."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Open a journal. One that is not gone on with is kept: what it has found out may have taken hours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not resume:
            set_aside(path)
        self._runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        self._journal = Journal(path)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            # A killed process may have left half a line.
            with contextlib.suppress(ValueError):
                data = json.loads(line)
                self._runs.setdefault(tuple(data["run"]), []).append(data["outcome"])
        if path.stat().st_size:
            self._journal.end_line()

    def of(self, *words: str) -> list[dict[str, Any]]:
        return self._runs.get(words, [])

    def add(self, outcome: dict[str, Any], *words: str) -> None:
        self._journal.write(run=words, outcome=outcome)
        self._runs.setdefault(words, []).append(outcome)

    def close(self) -> None:
        self._journal.close()
