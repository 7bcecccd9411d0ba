"""How the files of a run and of its reports are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    # A witness may quote bytes that are not text; they must not prevent the report.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_results(path: Path, data: Mapping[str, Any]) -> None:
    """Write the JSON of a run, all of it or nothing: a killed process leaves the old file."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
