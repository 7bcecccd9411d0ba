"""The output of a run: a table for the terminal, a JSON file, and the comparison with an earlier run.

docs/benchmarks.md describes the JSON file, field by field.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.rows import Row, worsened

# Raised when a field changes its meaning, so that old files are refused rather than misread.
SCHEMA = 1


def environment() -> dict[str, Any]:
    """Describe the machine and versions, on which the figures depend; shown, never judged."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": usable,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def table(rows: Sequence[Row]) -> str:
    """Format all rows as text, in columns."""
    head = ("benchmark", "what", "against", "ours", "theirs", "unit", "ratio", "quartiles", "best", "target", "verdict")
    lines = [
        (
            row.benchmark,
            row.what,
            row.against,
            figure(row.ours),
            figure(row.theirs),
            row.unit,
            figure(row.ratio),
            f"{figure(row.low)} to {figure(row.high)}",
            figure(row.best),
            "" if row.target is None else f"{row.target:g}",
            row.verdict,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *lines)]
    return "\n".join(text.rstrip() for text in texts)


def figure(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}" if value >= 0.1 else f"{value:.3f}"


def write(path: str | Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write the JSON file."""
    written = {
        "schema": SCHEMA,
        "environment": dict(about),
        "rows": [{"name": row.name, **dataclasses.asdict(row), "verdict": row.verdict} for row in rows],
    }
    Path(path).write_text(json.dumps(written, indent=1) + "\n")


def read(path: str | Path) -> list[Row]:
    """Read the rows of a JSON file.

    Raises:
        ValueError: `--json` did not write the file, or it has another schema.
    """
    found = json.loads(Path(path).read_text())
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} should have been written by --json with schema {SCHEMA}, but it has {schema!r}.")
    fields = [field.name for field in dataclasses.fields(Row)]
    return [Row(**{field: row[field] for field in fields}) for row in found["rows"]]


def comparison(old: Sequence[Row], new: Sequence[Row]) -> list[str]:
    """Return a line for each ratio that became worse by more than both spreads."""
    before = {row.name: row for row in old}
    return [
        f"{row.name}: {figure(before[row.name].ratio)} "
        f"({figure(before[row.name].low)} to {figure(before[row.name].high)}) "
        f"is now {figure(row.ratio)} ({figure(row.low)} to {figure(row.high)})"
        for row in new
        if row.name in before and worsened(before[row.name], row)
    ]
