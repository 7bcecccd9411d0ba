"""Every finished run on disk, one JSON line each before the next run starts, so that a command can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..reports.journal import Journal, lines_of, set_aside


class RunJournal:
    """Runs by the words that say what ran, where and under which conditions."""

    def __init__(self, path: Path, resume: bool) -> None:
        """Open a journal. One that is not gone on with is kept: what it has found out may have taken hours."""
        if path.exists() and not resume:
            set_aside(path)
        self._runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in lines_of(path, "run"):
            self._runs.setdefault(tuple(line["run"]), []).append(line["outcome"])
        self._journal = Journal(path)

    def of(self, *words: str) -> list[dict[str, Any]]:
        return self._runs.get(words, [])

    def add(self, outcome: dict[str, Any], *words: str) -> None:
        self._journal.write(run=words, outcome=outcome)
        self._runs.setdefault(words, []).append(outcome)

    def close(self) -> None:
        self._journal.close()
