"""A copy of hostcb with one module changed: a folder of links, which processes find before the real one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "hostcb"


def make_overlay(folder: Path, module: str, source: str, package: Path = PACKAGE) -> Path:
    """Make the folder; `module` is the path of the changed source in the package. Returns what belongs on the path."""
    changed = Path(module)
    for number in range(len(changed.parts)):
        below = Path(*changed.parts[:number])
        inside = folder / package.name / below
        inside.mkdir(parents=True, exist_ok=True)
        for each in (package / below).iterdir():
            # Python would take compiled files that other mutants of the module have written for this one's.
            if each.name not in (changed.parts[number], "__pycache__"):
                (inside / each.name).symlink_to(each)
    (folder / package.name / changed).write_text(source)
    return folder


def environment_with(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Python processes, and those that they start, import from the overlay."""
    path = (str(folder), str(PROJECT), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep)))
    # Otherwise `python -m` looks in the present folder before.
    return {**inherited, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "PYTHONSAFEPATH": "1"}
