"""The journal of a campaign: a line for each mutant that was tried, so a campaign goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

from .trial import Result


def read(path: Path) -> dict[str, Result]:
    """The last result of each mutant."""
    if not path.exists():
        return {}
    lines = path.read_text().splitlines(keepends=True)
    # A stopped campaign may have left half a line.
    whole = [Result.from_json(json.loads(line)) for line in lines if line.endswith("\n")]
    return {result.id: result for result in whole}


def append(path: Path, result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = path.read_bytes() if path.exists() else b""
    with path.open("ab") as file:
        if left and not left.endswith(b"\n"):
            file.truncate(left.rfind(b"\n") + 1)
        file.write(json.dumps(result.as_json()).encode() + b"\n")
