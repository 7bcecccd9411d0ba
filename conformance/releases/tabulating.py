"""Runs cells with many releases, one release after the other, and keeps each finished probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .environments import Environment, Environments
from .probes import probe
from .records import Record, Records
from .release import Release, ReleaseError, Skipped
from .running import refusing


@dataclass(frozen=True)
class How:
    """How each cell runs."""

    log: Path
    deadline: float = 60.0
    repeat: int = 1
    stress: bool = False

    def conditions(self, python: tuple[int, int] | None) -> str:
        """What an outcome depends on, beside the release and the cell; `python` is the version, if one was chosen."""
        chosen = "{}.{}".format(*python) if python else "not chosen"
        return f"deadline {self.deadline:g}, Python {chosen}{', stress' * self.stress}"


@dataclass
class Tried:
    """What came of it, besides the records."""

    skipped: list[Skipped] = field(default_factory=list)
    interrupted: bool = False


def tabulate(
    releases: Sequence[Release],
    cells: Sequence[str],
    environments: Environments,
    records: Records,
    how: How,
    note: Callable[[Record], None],
) -> Tried:
    """Run what the records do not have yet; Ctrl-C ends it, and keeps what is finished."""
    tried = Tried()
    missing = {release: missing_of(records, release, cells, how.repeat) for release in releases}
    # The next environment is made while cells run in the one before.
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        coming = {release: pool.submit(environments.get, release) for release in releases if missing[release]}
        for release, future in coming.items():
            _try(release, future, missing[release], records, how, note, tried)
    except KeyboardInterrupt:
        tried.interrupted = True
    finally:
        # An installation may take minutes, and nobody waits for it any more.
        with refusing():
            pool.shutdown(cancel_futures=True)
    return tried


def _try(
    release: Release,
    future: Future[Environment],
    missing: Sequence[str],
    records: Records,
    how: How,
    note: Callable[[Record], None],
    tried: Tried,
) -> None:
    try:
        environment = future.result()
        for found in probe(environment, missing, deadline=how.deadline, log=how.log, stress=how.stress):
            record = Record(release, found.cell, found.outcome)
            records.add(record)
            note(record)
    except ReleaseError as error:
        tried.skipped.append(Skipped(release.label, str(error)))


def missing_of(records: Records, release: Release, cells: Sequence[str], repeat: int) -> list[str]:
    """The cells that are still to run, each as often as it is."""
    return [cell for cell in cells for _ in range(repeat - records.count(release, cell))]
