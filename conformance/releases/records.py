"""The journal of a table: one JSON line for each finished probe, written before the next one starts.

Each line has the conditions of its run. Runs under other conditions are another table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.journal import Journal, set_aside
from ..oracle.verdicts import Outcome, Verdict
from .release import Release, ReleaseError


@dataclass(frozen=True)
class Record:
    """One run of one cell with one release."""

    release: Release
    cell: str
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        release = {"jax": self.release.jax, "jaxlib": self.release.jaxlib}
        return {"release": release, "cell": self.cell, "outcome": self.outcome.as_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Record:
        release = Release(data["release"]["jax"], data["release"]["jaxlib"])
        return Record(release, str(data["cell"]), Outcome.from_json(data["outcome"]))


class Records:
    """A journal that is read to go on, and appended to; only lines with the same conditions are read."""

    def __init__(self, path: Path, resume: bool, conditions: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.conditions = conditions
        self.all = list(_read(path, conditions)) if resume and path.exists() else []
        if path.exists() and not resume:
            # Somebody may have forgotten to say that the run goes on.
            set_aside(path)
        self._counts = Counter(_key(record) for record in self.all)
        self._journal = Journal(path)
        # A killed process may have left half a line.
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._journal.end_line()

    def add(self, record: Record) -> None:
        self.all.append(record)
        self._counts[_key(record)] += 1
        self._journal.write(**record.as_json(), conditions=self.conditions)

    def count(self, release: Release, cell: str) -> int:
        """How often the cell has run with the release."""
        return self._counts[release, cell]

    def close(self) -> None:
        self._journal.close()


def _key(record: Record) -> tuple[Release, str]:
    return record.release, record.cell


def _read(path: Path, conditions: str) -> Iterator[Record]:
    for line in path.read_text(errors="replace").splitlines():
        # Lines of something else, or of a later version of the suite, are no records.
        with suppress(ValueError, KeyError, TypeError, AttributeError, ReleaseError):
            data = json.loads(line)
            if data["conditions"] != conditions:
                continue
            record = Record.from_json(data)
            # The next run may show what an error of the suite has not.
            if record.outcome.verdict is not Verdict.HARNESS_ERROR:
                yield record
