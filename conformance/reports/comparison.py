"""The table of any number of results, or of the implementations or platforms of results, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from ..oracle.verdicts import Verdict
from .columns import Side
from .results import CellRecord
from .table import Column, Row, Seen, Table, Wording, in_words

WORDING = Wording(title="Cells compared", column="column", differ="differ", same="agree", ordered=False)


def comparison(sides: Sequence[Side], *, only_common: bool = False) -> Table:
    cells = dict.fromkeys(cell for side in sides for cell in side.cells)
    rows = [_row(cell, [side.cells.get(cell) for side in sides]) for cell in cells]
    rows = [row for row in rows if all(row.seen)] if only_common else rows
    return Table(WORDING, tuple(Column(side.label, side.environment) for side in sides), tuple(rows))


def _row(cell: str, found: Sequence[CellRecord | None]) -> Row:
    by_chance = any(record and record.known and record.known.intermittent for record in found)
    seen = tuple((_seen(record),) if record else () for record in found)
    return Row(cell, seen, "known to fail by chance" if by_chance else "")


def _seen(record: CellRecord) -> Seen:
    anomaly = "" if record.verdict == Verdict.PASS.value else record.anomaly
    words = in_words(record.verdict, anomaly, record.stage or "")
    return Seen(words, record.verdict.partition("(")[0], record.witness, [vars(event) for event in record.history])
