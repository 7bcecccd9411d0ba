"""What `diff` sets side by side: the cells of results, or of their implementations, by the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..planning.keywords import any_of
from ..spec.errors import CommandError
from .results import CellRecord, RunRecord
from .table import Column, Row, Seen, Table

ANY = "*"
"""In the place of the implementation in a cell's id."""


class NothingToCompareError(CommandError):
    """Results that cannot be compared. The text is one line for users."""


@dataclass
class Side:
    """One column of a comparison."""

    label: str
    cells: dict[str, CellRecord] = field(default_factory=dict)
    """By the part of their ids that all columns have in common."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The reasons why cells of these names did not run."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the workers reported of machine and software, by topology."""


def sides(
    results: Mapping[str, Sequence[RunRecord]], implementations: Sequence[str] = (), patterns: Sequence[str] = ()
) -> list[Side]:
    """A column for each of the named results, or for each of the implementations in each of them."""
    wanted = any_of(patterns) if patterns else lambda _: True
    found: dict[str, Side] = {}
    for name, runs in results.items():
        # In the order in which the implementations are named: the last column is the newer one.
        for implementation in implementations or (ANY,):
            cells = [one for run in runs for one in run.cells if implementation in (ANY, one.implementation)]
            cells = [one for one in cells if wanted(one.id)]
            if implementations and not cells:
                continue
            own = [implementation] if implementations else []
            side = Side(" ".join([name, *own] if len(results) > 1 or not own else own))
            side.cells = {_matched(cell.id, implementation): cell for cell in cells}
            for run in runs:
                side.left_out |= {_matched(one, implementation): why for one, why in run.left_out.items()}
                for topology, info in run.environment.items():
                    side.environment[topology] = {name: str(value) for name, value in info.items()}
            found[side.label] = side
    if not any(side.cells for side in found.values()):
        raise NothingToCompareError(f"no cell matches {' or '.join(patterns)}" if patterns else "there is no cell")
    if len(found) < 2:
        raise NothingToCompareError(
            f"a comparison needs two columns, and there is {next(iter(found))!r} alone: name another results folder,"
            " or another --implementation"
        )
    return [*found.values()]


def _matched(cell_id: str, implementation: str) -> str:
    """The id without what its column says."""
    if implementation != ANY and cell_id.startswith(f"{implementation}/"):
        return ANY + cell_id.removeprefix(implementation)
    return cell_id


def comparison(columns: Sequence[Side], *, only_common: bool = False) -> Table:
    """The table of any number of columns, cell by cell."""
    cells = dict.fromkeys(cell for side in columns for cell in side.cells)
    rows = [_row(cell, [side.cells.get(cell) for side in columns]) for cell in cells]
    rows = [row for row in rows if all(row.seen)] if only_common else rows
    return Table(tuple(Column(side.label, side.environment) for side in columns), tuple(rows))


def _row(cell: str, found: Sequence[CellRecord | None]) -> Row:
    by_chance = any(record and record.known and record.known.intermittent for record in found)
    seen = (Seen.of(one.words, one.witness) if one else None for one in found)
    return Row(cell, tuple(seen), "known to fail by chance" if by_chance else "")
