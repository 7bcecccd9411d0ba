"""Records once which lines of hostcb each cell and test reaches, with the unchanged source: it must pass to be used."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from conformance.engine.tasks import Kind, Task
from conformance.oracle.verdicts import Verdict
from conformance.reports.journal import lines_of
from conformance.warm.process import COLD

from . import coverage, tester
from .coverage import IMPORT, Coverage
from .forks import in_forks, temporary_folder
from .lines import hostcb_lines
from .overlay import PACKAGE, environment_with, make_overlay
from .processes import fork_worker
from .running import Runner

TOGETHER = 30
"""Cells that one process records: what it has found is written then."""

FILE_DEADLINE = 1200.0
"""Seconds for the tests of a file."""

LINES = Path(hostcb_lines.__file__).parent

Part: TypeAlias = tuple[Task, ...] | str
"""What one fork records: some cells of a kind, or the tests of a file."""


class RecordingError(Exception):
    """This Python cannot record."""


def record(
    tasks: Sequence[Task], files: Sequence[str], path: Path, workers: int, say: Callable[[str], None] = print
) -> Coverage:
    """Record the cells and the files of tests that the record does not have yet."""
    known = coverage.load(path, PACKAGE)
    missing = [task for task in tasks if task.id not in known.reached and task.id not in known.left_out]
    wanted = [*(file for file in files if known.files.get(file) != coverage.hash_of(file)), *_chunks(missing)]
    if not wanted:
        return known
    if not hostcb_lines.can_record:
        raise RecordingError("lines are recorded by sys.monitoring: run this with Python 3.12 or newer")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(json.dumps({"source": coverage.fingerprint(PACKAGE)}) + "\n")
    for done, (part, lines) in enumerate(in_forks(wanted, workers, lambda part: _record(part, path.parent)), 1):
        with path.open("a") as file:
            file.writelines(line + "\n" for line in Path(lines).read_text().splitlines())
        Path(lines).unlink()
        say(f"recorded {part if isinstance(part, str) else f'{len(part)} cells'}: {done} of {len(wanted)} parts")
    return coverage.load(path, PACKAGE)


def _chunks(tasks: Sequence[Task]) -> list[Part]:
    by_kind: dict[Kind, list[Task]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(task)
    starts = ((each, start) for each in by_kind.values() for start in range(0, len(each), TOGETHER))
    return [tuple(each[start : start + TOGETHER]) for each, start in starts]


def _record(part: Part, results: Path) -> str:
    """In a fork: run the cells or tests, and write a line for each into a file."""
    log = results / "record.log"
    with temporary_folder() as folder:
        # As a mutant is found, so that what fails because of this is left out.
        overlay = make_overlay(folder / "overlay", package=PACKAGE)
        os.environ.update(environment_with(overlay, environment_with(LINES, os.environ)))
        sys.path.insert(0, str(overlay))
        os.environ[hostcb_lines.FOLDER] = str(folder)
        os.environ[hostcb_lines.PACKAGE] = str(overlay / PACKAGE.name)
        # A process begins to record when Python starts, and so a fork would record for its server.
        os.environ[COLD] = "1"
        lines = _of_tests(part, folder, log) if isinstance(part, str) else _of_cells(part, log)
        reached = coverage.read_lines(folder)
    of_file = reached.get(part, {}) if isinstance(part, str) else {}
    for line in lines:
        if "seconds" in line:
            line |= coverage.Reached(
                line["id"], line["seconds"], _union(reached.get(line["id"], {}), of_file)
            ).as_json()
    lines.append(coverage.Reached(IMPORT, 0.0, _union(reached.get(IMPORT, {}))).as_json())
    handle, name = tempfile.mkstemp(suffix=".jsonl", dir=results)
    with os.fdopen(handle, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return name


def _union(*reached: dict[str, set[int]]) -> dict[str, frozenset[int]]:
    modules = {module for each in reached for module in each}
    return {module: frozenset().union(*(each.get(module, ()) for each in reached)) for module in modules}


def _of_cells(tasks: Iterable[Task], log: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with Runner(log, _begin) as runner:
        for task in tasks:
            started = time.monotonic()
            outcome = runner.run(task, task.deadline)
            if outcome.verdict is Verdict.PASS:
                lines.append({"id": task.id, "seconds": time.monotonic() - started})
            else:
                lines.append({"id": task.id, "left_out": f"{outcome.label}: {outcome.reason[:300]}"})
    return lines


def _begin() -> None:
    """In a worker for cells, before it imports hostcb."""
    hostcb_lines.start()
    sys.stdin = hostcb_lines.Commands(sys.stdin)


def _of_tests(file: str, folder: Path, log: Path) -> list[dict[str, Any]]:
    """All tests of a file in one process: those after one that ends it in another."""
    ended = folder / "tests.jsonl"
    lines: dict[str, dict[str, Any]] = {}
    while True:
        worker = fork_worker(functools.partial(tester.main, functools.partial(_plugins, file, ended)), log)
        outcome = worker.run(file, FILE_DEADLINE)
        if not worker.buried:
            worker.kill()
        known = len(lines)
        lines |= {line["id"]: line for line in lines_of(ended, "id")}
        if outcome.verdict not in (Verdict.CRASH, Verdict.HANG) or len(lines) == known:
            return [*lines.values(), {"file": file, "hash": coverage.hash_of(file)}]


def _plugins(file: str, ended: Path) -> list[object]:
    hostcb_lines.start()
    return [tester.Recorder(file, ended)]
