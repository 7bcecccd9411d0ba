"""Groups of unexpected results that have one cause: every report shows a cause once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..oracle.verdicts import Verdict
from .results import CellRecord

FIRST_WORDS = 6
"""So many words of a witness distinguish causes; its numbers differ from cell to cell."""

WITNESS_LINES = 12
"""The page and the JSON have the others."""


@dataclass(frozen=True)
class Group:
    """Cells with the same cause, of which the first is the example that reports show."""

    cells: tuple[CellRecord, ...]

    @property
    def example(self) -> CellRecord:
        return self.cells[0]

    @property
    def title(self) -> str:
        """What the cells have in common."""
        if cause := self.example.cause:
            return f"unsupported: {cause}"
        return f"{self.example.status.value.replace('_', ' ')}: {self.example.headline}"

    @property
    def witness(self) -> list[str]:
        """The first lines of the example's."""
        lines = self.example.witness.strip().splitlines()
        left = len(lines) - WITNESS_LINES
        return lines[:WITNESS_LINES] + ([f"... and {left} more lines"] if left > 0 else [])

    @property
    def where(self) -> str:
        first = self.example.id
        return first if len(self.cells) == 1 else f"{len(self.cells)} cells, {first} for one"


def grouped(cells: Iterable[CellRecord]) -> list[Group]:
    """The groups, the largest first; cells that never ran come last."""
    found: dict[tuple[str, ...], list[CellRecord]] = {}
    for cell in cells:
        words = re.findall(r"[^\W\d]+", cell.witness.strip().partition("\n")[0])[:FIRST_WORDS]
        own = (cell.status.value, cell.headline, cell.anomaly, *words)
        found.setdefault((cell.cause,) if cell.cause else own, []).append(cell)
    groups = [Group(tuple(cells)) for cells in found.values()]
    return sorted(groups, key=lambda group: (group.example.verdict == Verdict.MISSING.value, -len(group.cells)))
