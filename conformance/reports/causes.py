"""Groups of unexpected results that have one cause: every report shows a cause once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..oracle.verdicts import ExpectationStatus, Verdict
from .capabilities import NOT_IN_JAX, lacks_function
from .results import CellRecord, RunRecord
from .table import first_words, several

WITNESS_LINES = 12
"""The page and the JSON have the others."""

MOST_ENTRIES = 5
"""`expect` names the entry of each cell."""


@dataclass(frozen=True)
class Group:
    """Cells with the same cause, of which the first is the example that reports show."""

    cells: tuple[CellRecord, ...]
    notes: tuple[str, ...]
    """The entries to edit, and whose failure it is: an implementation's, the platform's, or one that the CPU has."""

    @property
    def example(self) -> CellRecord:
        return self.cells[0]

    @property
    def title(self) -> str:
        """What the cells have in common."""
        if cause := self.example.cause:
            return f"unsupported: {cause}"
        status, expected = self.example.status, f", expected {self.example.expected}"
        differs = "" if status is ExpectationStatus.UNEXPECTED else expected
        return f"{status.value.replace('_', ' ')}: {self.example.words}{differs}"

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


def grouped(run: RunRecord) -> list[Group]:
    """The groups of a run's unexpected results: first those of this platform alone, and those that never ran last."""
    found: dict[tuple[str, ...], list[CellRecord]] = {}
    for cell in run.unexpected:
        on_cpu = cell.on_cpu.reason if cell.on_cpu else ""
        own = (cell.status.value, cell.words, cell.expected, on_cpu, *first_words(cell.witness))
        found.setdefault((cell.cause,) if cell.cause else own, []).append(cell)
    results = {cell.id: cell for cell in run.cells}
    groups = [Group(tuple(cells), tuple(_notes(cells, results))) for cells in found.values()]
    return sorted(groups, key=_rank)


def _rank(group: Group) -> tuple[bool, bool, int]:
    example = group.example
    return example.verdict == Verdict.MISSING.value, example.on_cpu is not None, -len(group.cells)


def _notes(cells: list[CellRecord], results: Mapping[str, CellRecord]) -> Iterator[str]:
    if on_cpu := cells[0].on_cpu:
        yield f"known on the CPU: {' '.join(on_cpu.reason.split())} {on_cpu.link}"
    entries = [*dict.fromkeys(cell.entry for cell in cells if cell.entry)]
    yield from (f"to edit: {entry}" for entry in entries[:MOST_ENTRIES])
    if len(entries) > MOST_ENTRIES:
        yield f"to edit, besides: {len(entries) - MOST_ENTRIES} more, which `expect` names"
    if cells[0].verdict == Verdict.MISSING.value:
        return
    # Where nothing runs, no cell does.
    once = sum(cell.attempts == 1 and not cell.repetition and "@" not in cell.id for cell in cells)
    if once:
        yield f"not run again: {once} of {several(len(cells), 'cell')}"
    implementations = dict.fromkeys(cell.implementation for cell in results.values())
    for one in dict.fromkeys(cell.implementation for cell in cells):
        own = [cell for cell in cells if cell.implementation == one]
        for other in implementations:
            if other != one:
                seen = Counter(_seen(other + cell.id.removeprefix(one), cell, results) for cell in own)
                same = ", ".join(f"{count} {words}" for words, count in seen.most_common())
                yield f"{one}: {several(len(own), 'cell')}. The same with {other}: {same}."


def _seen(cell_id: str, failed: CellRecord, results: Mapping[str, CellRecord]) -> str:
    """What the cell with this id did, of which another implementation's failed."""
    cell = results.get(cell_id)
    if cell is None or cell.verdict == Verdict.MISSING.value:
        return NOT_IN_JAX if lacks_function(cell_id) else "not run"
    if cell.passed:
        return "passed"
    # The stage may be another one for the same failure: JAX and hostcb report it in different places.
    same = (cell.verdict, cell.anomaly) == (failed.verdict, failed.anomaly)
    return f"failed in {'the same' if same else 'another'} way"
