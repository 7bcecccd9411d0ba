"""Journals: JSON lines, each written to disk before the next step, so that what was killed can go on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
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
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a line is one write to the end of the file, which writes of other processes cannot split.
        self._file = path.open("a+b", buffering=0)
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                # A killed process has left half a line.
                self._file.write(b"\n")

    def write(self, **line: Any) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def lines_in(text: str, key: str) -> Iterator[dict[str, Any]]:
    """The whole lines that have this key."""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            data = json.loads(line)
            if isinstance(data, dict) and key in data:
                yield data


def lines_of(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Those of a file; none if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        yield from lines_in(path.read_text(encoding="utf-8", errors="replace"), key)
