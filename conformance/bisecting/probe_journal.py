"""Every finished probe on disk, one JSON line each, so that a search that ends early can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..engine.journal import set_aside
from ..spec.errors import CommandError
from .samples import Sample

NAME = "probes.jsonl"


class JournalError(CommandError):
    """The journal cannot be kept, so the search must not go on; one line for users."""


class ProbeJournal:
    """The probes of one folder of results. A key says what ran where, and how."""

    def __init__(self, folder: Path, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self._known: dict[str, list[Sample]] = {}
        if resume:
            self._read()
        elif self.path.exists():
            set_aside(self.path)
        # Unbuffered: each line is one write to the end of the file.
        self._file = self.path.open("ab", buffering=0)
        if self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n"):
            # A killed process may leave a part of a line.
            self._file.write(b"\n")

    def known(self, *key: str) -> list[Sample]:
        return [*self._known.get(json.dumps(key), ())]

    def add(self, sample: Sample, *key: str) -> None:
        try:
            self._file.write(json.dumps({"probe": key, **sample.as_json()}).encode() + b"\n")
        except OSError as error:
            raise JournalError(f"the probe cannot be written to {self.path}: {error.strerror}") from error

    def close(self) -> None:
        self._file.close()

    def _read(self) -> None:
        if not self.path.exists():
            raise JournalError(f"there is nothing to go on with: no {self.path}; leave --resume out")
        for data in _lines(self.path):
            sample = Sample.from_json(data)
            # What could not be installed may be by now.
            if not sample.untestable:
                self._known.setdefault(json.dumps(data["probe"]), []).append(sample)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines; the last one may be torn."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict) and {"probe", *Sample.__dataclass_fields__} <= {*data}:
            yield data
