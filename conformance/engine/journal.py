"""The begin and the outcome of each cell, one line each, written to disk before the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def set_aside(path: Path) -> Path:
    """Give an old journal the next free name with a number: what it has found out may have taken hours."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return path.rename(free)


class Journal:
    """JSON lines that several processes append to the same file."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: a line is one write to the end of the file, which writes of other processes cannot split.
        self._file = path.open("ab", buffering=0)

    def write(self, **line: Any) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def end_line(self) -> None:
        """End a line that a killed process has left."""
        self._file.write(b"\n")

    def close(self) -> None:
        self._file.close()
