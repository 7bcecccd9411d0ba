"""Runs cells with many releases on a Dask cluster: a piece of work is one release, with its environment."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.dask_pieces import PieceError
from ..engine.dask_work import Work
from ..engine.tools import DaskClusterError
from .environments import Environments
from .probes import probe
from .records import Record, Records
from .release import Release, ReleaseError, Skipped
from .tabulating import How, Tried, missing_of


@dataclass(frozen=True)
class Place:
    """Where the workers have their environments."""

    folder: Path | None
    """On the machine of each worker; None for its user's cache."""
    python: tuple[int, int] | None = None


def probe_release(
    release: Release, cells: Sequence[str], place: Place, deadline: float, stress: bool
) -> Iterator[dict[str, Any]]:
    """What the journal has of each finished probe, or the error of the release. A piece of work on a worker."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        log = Path(folder) / "workers.log"
        try:
            environment = Environments(place.folder, place.python).get(release)
            for found in probe(environment, cells, deadline=deadline, log=log, stress=stress):
                yield Record(release, found.cell, found.outcome).as_json()
        except ReleaseError as error:
            yield {"error": str(error)}


def tabulate_on(
    work: Work,
    releases: Sequence[Release],
    cells: Sequence[str],
    place: Place,
    records: Records,
    how: How,
    note: Callable[[Record], None],
) -> Tried:
    """Like `tabulating.tabulate`, with all releases handed to the cluster at once."""
    missing = {release: found for release in releases if (found := missing_of(records, release, cells, how.repeat))}
    skipped: dict[Release, Skipped] = {}
    tried = Tried()
    lock = threading.Lock()

    def run(release: Release) -> None:
        try:
            for line in work.ask(probe_release, release, missing[release], place, how.deadline, how.stress):
                if error := line.get("error"):
                    raise ReleaseError(error)
                record = Record.from_json(line)
                with lock:
                    records.add(record)
                    note(record)
        except (ReleaseError, PieceError, DaskClusterError) as error:
            skipped[release] = Skipped(release.label, str(error))

    # These threads only wait for the cluster.
    pool = ThreadPoolExecutor(max(1, len(missing)))
    try:
        for waiting in [pool.submit(run, release) for release in missing]:
            waiting.result()
    except KeyboardInterrupt:
        tried.interrupted = True
    finally:
        work.stop()
        pool.shutdown(cancel_futures=True)
    tried.skipped += [skipped[release] for release in missing if release in skipped]
    return tried
