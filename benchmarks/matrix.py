"""The time of the conformance matrix: `python -m benchmarks.matrix`.

It compares the default run, with two workers, with the five minutes that it may take on two cores, and the mean times
of a cell of each implementation. It ignores the verdicts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import running
from benchmarks.rows import Row, compared

MOST_SECONDS = 300.0


def run(rounds: int = 1, options: Sequence[str] = ()) -> list[Row]:
    results = [_results(options) for _ in range(rounds)]
    seconds = [each["seconds"] for each in results]
    rows = [compared("matrix", "the default run", "8 minutes", seconds, [MOST_SECONDS] * rounds, 1.0, "s")]
    ours, theirs = ([_cell(each, implementation) for each in results] for implementation in ("hostcb", "jax"))
    if all(ours) and all(theirs):
        rows.append(compared("matrix", "a cell of hostcb, mean", "a cell of jax, mean", ours, theirs, None, "ms"))
    return rows


def _results(options: Sequence[str]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "conformance", "run", "-n", "2", "--results", folder, *options]
        ended = subprocess.run(command, cwd=running.ROOT, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
        # Status 1 means an unexpected outcome of a cell; the time counts all the same.
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"the conformance run ended with status {ended.returncode}")
        return json.loads((Path(folder) / "conformance-cpu.json").read_text())


def _cell(results: Any, implementation: str) -> float:
    """Return the mean milliseconds of a cell; 0 if there is no cell."""
    seconds = [cell["seconds"] for cell in results["cells"] if cell["id"].startswith(f"{implementation}/")]
    return 1e3 * statistics.fmean(seconds) if seconds else 0.0


if __name__ == "__main__":
    sys.exit(running.main({"matrix": sys.modules[__name__]}, None, ["matrix"]))
