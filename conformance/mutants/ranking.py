"""The cells to run first: few cells that together kill all mutants, those that kill the most of them first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..spec.errors import CommandError

HEAD = """\
# The cells that run first, and the mutants for which each was chosen: each kills the most mutants that none before it
# has killed. `python -m conformance mutants --rank DIR` writes this from the kill matrix in DIR.
"""


def ranking_of(folder: Path) -> str:
    """The text of the file, from `mutants.json` in a folder."""
    file = folder / "mutants.json"
    try:
        matrix = json.loads(file.read_text())
        kills, seconds = _kills(matrix["mutants"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CommandError(
            f"--rank: {file} is no kill matrix ({error}); `mutants --results {folder}` writes one"
        ) from error
    if not kills:
        raise CommandError(f"--rank: no mutant is killed in {file}")
    return HEAD + "".join(f"{' '.join((cell, *killed))}\n" for cell, killed in ranked(kills, seconds))


def _kills(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, set[str]], dict[str, float]]:
    """The cells that kill each mutant, and the seconds of each cell."""
    kills: dict[str, set[str]] = {}
    seconds: dict[str, float] = {}
    for row in rows:
        for trial in row["trials"]:
            if trial["kills"]:
                kills.setdefault(row["mutant"], set()).add(trial["cell"])
                seconds[trial["cell"]] = max(trial["seconds"], seconds.get(trial["cell"], 0.0))
    return kills, seconds


def ranked(kills: Mapping[str, set[str]], seconds: Mapping[str, float]) -> list[tuple[str, list[str]]]:
    """Cells with the mutants that none before them kills: a greedy cover, and of equal cells the quicker one first."""
    left = dict(kills)
    chosen: list[tuple[str, list[str]]] = []
    while left:
        counts = Counter(cell for cells in left.values() for cell in cells)
        best = min(counts, key=lambda cell: (-counts[cell], seconds[cell], cell))
        chosen.append((best, sorted(mutant for mutant, cells in left.items() if best in cells)))
        left = {mutant: cells for mutant, cells in left.items() if best not in cells}
    return chosen
