"""The journal of a table: one JSON line for each finished probe, written before the next one starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..engine.journal import Journal
from ..oracle.verdicts import Outcome
from .release import Release


@dataclass(frozen=True)
class Record:
    """One run of one cell with one release."""

    release: Release
    cell: str
    outcome: Outcome


class Records:
    """A journal that is read to go on, and appended to."""

    def __init__(self, path: Path, resume: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.all = list(_read(path)) if resume and path.exists() else []
        if path.exists() and not resume:
            # Somebody may have forgotten to say that the run goes on.
            path.replace(path.with_name(f"{path.name}.before"))
        self._counts = Counter(_key(record) for record in self.all)
        self._journal = Journal(path)
        # A killed process may have left half a line.
        if self.all and not path.read_bytes().endswith(b"\n"):
            self._journal.end_line()

    def add(self, record: Record) -> None:
        self.all.append(record)
        self._counts[_key(record)] += 1
        release = {"jax": record.release.jax, "jaxlib": record.release.jaxlib}
        self._journal.write(release=release, cell=record.cell, outcome=record.outcome.as_json())

    def count(self, release: Release, cell: str) -> int:
        """How often the cell has run with the release."""
        return self._counts[release, cell]

    def close(self) -> None:
        self._journal.close()


def _key(record: Record) -> tuple[Release, str]:
    return record.release, record.cell


def _read(path: Path) -> Iterator[Record]:
    for line in path.read_text(errors="replace").splitlines():
        with suppress(json.JSONDecodeError, KeyError, TypeError):
            data = json.loads(line)
            release = Release(data["release"]["jax"], data["release"]["jaxlib"])
            yield Record(release, data["cell"], Outcome.from_json(data["outcome"]))
