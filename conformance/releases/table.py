"""Cells by release, from the records of their runs."""

from __future__ import annotations

from collections.abc import Sequence

from ..oracle.verdicts import Outcome
from ..reports.table import Column, Row, Seen, Table, Wording, said
from .records import Record
from .release import Release, Skipped

WORDING = Wording(
    title="Cells by release",
    column="release",
    of=" of JAX",
    differ="changed",
    same="never changed",
    ordered=True,
    ran="ran with",
    left_out="Releases that were not tried",
)


def tried(records: Sequence[Record], releases: Sequence[Release]) -> tuple[Release, ...]:
    """Those of the releases that have a record, the oldest first: the columns of their table."""
    return tuple(release for release in sorted(releases) if any(record.release == release for record in records))


def table_of(
    records: Sequence[Record],
    releases: Sequence[Release],
    cells: Sequence[str],
    skipped: Sequence[Skipped] = (),
    problems: Sequence[str] = (),
) -> Table:
    found: dict[tuple[Release, str], list[Seen]] = {}
    for record in records:
        found.setdefault((record.release, record.cell), []).append(_seen(record.outcome))
    columns = tried(records, releases)
    rows = [Row(cell, tuple(tuple(found.get((release, cell), ())) for release in columns)) for cell in cells]
    left_out = tuple((one.release, one.reason) for one in skipped)
    return Table(WORDING, tuple(Column(release.label) for release in columns), tuple(rows), left_out, tuple(problems))


def _seen(outcome: Outcome) -> Seen:
    return Seen(said(outcome), outcome.verdict.value, outcome.reason, outcome.history)
