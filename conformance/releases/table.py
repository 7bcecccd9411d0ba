"""Cells by release, from the outcomes of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..oracle.verdicts import Outcome
from ..reports.table import Column, Row, Seen, Table, Wording, said
from .release import Release, Skipped

Outcomes: TypeAlias = Mapping[tuple[Release, str], Sequence[Outcome]]
"""Those of the runs of a cell with a release."""

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


def tried(outcomes: Outcomes) -> tuple[Release, ...]:
    """The releases with which a cell ran, the oldest first: the columns of their table."""
    return tuple(sorted({release for release, _ in outcomes}))


def table_of(
    outcomes: Outcomes, cells: Sequence[str], skipped: Sequence[Skipped] = (), problems: Sequence[str] = ()
) -> Table:
    columns = tried(outcomes)
    rows = [Row(cell, tuple(tuple(map(_seen, outcomes.get((one, cell), ()))) for one in columns)) for cell in cells]
    left_out = tuple((one.release, one.reason) for one in skipped)
    return Table(WORDING, tuple(Column(release.label) for release in columns), tuple(rows), left_out, tuple(problems))


def _seen(outcome: Outcome) -> Seen:
    return Seen(said(outcome), outcome.verdict.value, outcome.reason, outcome.history)
