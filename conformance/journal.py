"""What was begun and what came of it, line by line, on disk before anything can go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Journal:
    """JSON lines that several processes append to the same file."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: a line is one write to the end of the file, which those of other processes cannot split.
        self._file = path.open("ab", buffering=0)

    def write(self, **line: Any) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()
