"""Every finished run on disk, one JSON line each before the next run starts, so that a command can go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..reports.journal import Journal, lines_in, set_aside
from ..spec.errors import CommandError


class Recorded(Protocol):
    def as_json(self) -> dict[str, Any]: ...


Shown = TypeVar("Shown", bound=Recorded)
"""What a run has shown."""


class RunJournal(Generic[Shown]):
    """Runs by the words that say what ran, where and under which conditions."""

    def __init__(self, path: Path, resume: bool, read: Callable[[dict[str, Any]], Shown]) -> None:
        """Open a journal. One that is not gone on with is kept: what it has found out may have taken hours."""
        if path.exists() and not resume:
            set_aside(path)
        self._runs: dict[tuple[str, ...], list[Shown]] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            for data in lines_in(line, "run"):
                try:
                    self._runs.setdefault(tuple(data["run"]), []).append(read(data["outcome"]))
                except (LookupError, TypeError, ValueError) as error:
                    raise CommandError(
                        f"{path}, line {number} is no finished run ({error!r}): delete it, or leave out --resume"
                    ) from error
        self._journal = Journal(path)

    def of(self, *words: str) -> list[Shown]:
        return self._runs.get(words, [])

    def add(self, shown: Shown, *words: str) -> None:
        self._journal.write(run=words, outcome=shown.as_json())
        self._runs.setdefault(words, []).append(shown)

    def close(self) -> None:
        self._journal.close()
