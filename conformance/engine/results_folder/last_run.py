"""The journal and the logs of the last run in a results folder, until a new run has begun a cell.

Only its worker processes find that there is no device, and they write logs. Such a run must leave the last
run as it was.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ...reports.journal import lines_of, set_aside
from .resuming import is_unfinished

FOLDER = ".last-run"


class LastRun:
    def __init__(self, results: Path, journal: str) -> None:
        self._results = results
        self._journal = results / journal
        self._kept = results / FOLDER
        if self._kept.exists():
            # A run was killed before it had either begun a cell or ended.
            self.settle()

    def put_away(self) -> None:
        """Make room for the journal and the logs of a new run."""
        self._kept.mkdir()
        for file in self._files():
            file.rename(self._kept / file.name)

    def settle(self) -> None:
        """Forget the last run if a cell has begun since; otherwise bring it back."""
        if not self._kept.exists():
            return
        kept = [*self._kept.iterdir()]
        if kept and not any(event["event"] == "begin" for event in lines_of(self._journal, "event")):
            for file in self._files():
                file.unlink()
            for file in kept:
                file.rename(self._results / file.name)
        elif is_unfinished(journal := self._kept / self._journal.name):
            # What it has found out may have taken hours.
            numbered = set_aside(journal.rename(self._journal.with_name(f"killed-{journal.name}")))
            words = f"the run before was killed, and can no longer be resumed; its journal is {numbered}"
            print(f"NOTE: {words}", file=sys.stderr)
        shutil.rmtree(self._kept)

    def _files(self) -> list[Path]:
        return [*self._results.glob("worker-*.log"), *([self._journal] if self._journal.exists() else [])]
