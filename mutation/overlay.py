"""A copy of hostcb with one module changed: folders with links, which processes find before the real one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "hostcb"


def make_overlay(folder: Path, module: str = "", source: str = "", package: Path = PACKAGE) -> Path:
    """Make the folder; `module` is the path of the changed source in the package. Returns what belongs on the path.

    Without a module nothing is changed. What passes in such a folder can show something about a mutant.
    """
    for place, folders, files in os.walk(package):
        inside = folder / package.name / Path(place).relative_to(package)
        inside.mkdir(parents=True, exist_ok=True)
        # Folders are no links: a search for sources does not follow these. And Python would take compiled files that
        # other mutants of a module have written for this one's.
        folders[:] = [each for each in folders if each != "__pycache__"]
        for each in files:
            (inside / each).symlink_to(Path(place) / each)
    if module:
        changed = folder / package.name / module
        changed.unlink()
        changed.write_text(source)
    return folder


def environment_with(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Python processes, and those that they start, import from the overlay."""
    path = (str(folder), str(PROJECT), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep)))
    # Otherwise `python -m` looks in the present folder before.
    return {**inherited, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "PYTHONSAFEPATH": "1"}
