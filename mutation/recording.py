"""Records once which lines of hostcb each cell reaches, with the unchanged source: a cell must pass to be used."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance.engine.tasks import Kind, Task
from conformance.oracle.verdicts import Verdict

from . import coverage
from .coverage import IMPORT, Coverage
from .forks import in_forks, temporary_folder
from .lines import hostcb_lines
from .overlay import PACKAGE, environment_with
from .running import Cells

TOGETHER = 30
"""Cells that one process records: what it has found is written then."""

LINES = Path(hostcb_lines.__file__).parent


class RecordingError(Exception):
    """This Python cannot record."""


def record(tasks: Sequence[Task], path: Path, workers: int, say: Callable[[str], None] = print) -> Coverage:
    """Record the cells that the file does not have yet."""
    known = coverage.load(path, PACKAGE)
    wanted = [task for task in tasks if task.id not in known.cells and task.id not in known.left_out]
    if not wanted:
        return known
    if not hostcb_lines.can_record:
        raise RecordingError("the lines of cells are recorded by sys.monitoring: run this with Python 3.12 or newer")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(json.dumps({"source": coverage.fingerprint(PACKAGE)}) + "\n")
    done = 0
    for chunk, lines in in_forks(_chunks(wanted), workers, lambda chunk: _record(chunk, path.parent)):
        with path.open("a") as file:
            file.writelines(line + "\n" for line in Path(lines).read_text().splitlines())
        Path(lines).unlink()
        done += len(chunk)
        say(f"recorded {done} of {len(wanted)} cells")
    return coverage.load(path, PACKAGE)


def _chunks(tasks: Sequence[Task]) -> list[list[Task]]:
    by_kind: dict[Kind, list[Task]] = {}
    for task in tasks:
        by_kind.setdefault(task.kind, []).append(task)
    return [each[start : start + TOGETHER] for each in by_kind.values() for start in range(0, len(each), TOGETHER)]


def _record(tasks: Sequence[Task], results: Path) -> str:
    """In a fork: run the cells, and write a line for each into a file."""
    lines: list[dict[str, Any]] = []
    with temporary_folder() as folder:
        os.environ.update(environment_with(LINES, os.environ))
        os.environ[hostcb_lines.FOLDER] = str(folder)
        os.environ[hostcb_lines.PACKAGE] = str(PACKAGE)
        with Cells(results / "record.log", _begin) as cells:
            for task in tasks:
                started = time.monotonic()
                outcome = cells.run(task, task.deadline)
                if outcome.verdict is Verdict.PASS:
                    lines.append({"cell": task.id, "seconds": time.monotonic() - started})
                else:
                    lines.append({"cell": task.id, "left_out": f"{outcome.label}: {outcome.reason[:300]}"})
        reached = coverage.read_lines(folder)
    for line in lines:
        if "seconds" in line:
            modules = {module: frozenset(numbers) for module, numbers in reached.get(line["cell"], {}).items()}
            line |= coverage.Reached(line["cell"], line["seconds"], modules).as_json()
    at_import = {module: frozenset(numbers) for module, numbers in reached.get(IMPORT, {}).items()}
    lines.append(coverage.Reached(IMPORT, 0.0, at_import).as_json())
    handle, name = tempfile.mkstemp(suffix=".jsonl", dir=results)
    with os.fdopen(handle, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return name


def _begin() -> None:
    """In a worker, before it imports hostcb."""
    hostcb_lines.start()
    sys.stdin = hostcb_lines.Commands(sys.stdin)
