"""The programs that every run of the matrix tries again: what fuzzing has found, and some that combine much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .description import Program, from_json, to_json

FOLDER = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Kept:
    name: str
    about: str
    """What the program combines, or what it has found."""
    program: Program


def kept(folder: Path = FOLDER) -> Iterator[Kept]:
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        yield Kept(path.stem, data["about"], from_json(data["program"]))


def text_of(program: Program, about: str) -> str:
    """The text of a program's file in the corpus."""
    return json.dumps({"about": about, "program": to_json(program)}, indent=1) + "\n"
