"""How a report becomes a file."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    # A witness may quote bytes that are not text; they must not prevent the report.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
