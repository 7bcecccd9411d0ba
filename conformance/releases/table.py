"""Cells by release: the table of their outcomes, and whether these are as written down, strictly both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome
from ..reports.table import Column, Row, Seen, Table, Wording, said
from .environments import Release

Outcomes: TypeAlias = Mapping[tuple[Release, str], Outcome]
"""By release and cell."""

WORDING = Wording(
    title="Cells by release",
    column="release",
    of=" of JAX",
    differ="changed",
    same="never changed",
    ordered=True,
    ran="ran with",
)


def tried(outcomes: Outcomes) -> tuple[Release, ...]:
    """The releases with which a cell ran, the oldest first: the columns of their table."""
    return tuple(sorted({release for release, _ in outcomes}, key=lambda release: release.order))


def table_of(outcomes: Outcomes, cells: Sequence[str], problems: Sequence[str] = ()) -> Table:
    columns = tried(outcomes)
    rows = [Row(cell, tuple(_seen(outcomes.get((release, cell))) for release in columns)) for cell in cells]
    return Table(WORDING, tuple(Column(release.label) for release in columns), tuple(rows), problems=tuple(problems))


def _seen(outcome: Outcome | None) -> tuple[Seen, ...]:
    return (Seen(said(outcome), outcome.verdict.value, outcome.reason, outcome.history),) if outcome else ()


def problems_of(outcomes: Outcomes, cells: Sequence[str], expectations: Expectations) -> Iterator[str]:
    """What is not as written down: outcomes, globs that match no cell, and entries for no release of the table."""
    used = set()
    for release in tried(outcomes):
        here = expectations.applicable(release.jax)
        used |= {*here.entries}
        for cell in cells:
            if not (outcome := outcomes.get((release, cell))):
                continue
            status, entry = here.status(cell, outcome), here.of(cell)
            if not status.acceptable:
                kind, witness = status.value.replace("_", " "), outcome.reason.partition("\n")[0]
                stage = entry.stage.value if entry and entry.stage else "any stage"
                expected = f", not {entry.verdict} at {stage}" if entry else ""
                yield f"{cell} with {release.label}: {kind}, {said(outcome)}{expected}: {witness[:200]}"
    for pattern in expectations.unmatched(cells):
        yield f"the expectation {pattern!r} matches no cell of the table"
    for entry in expectations.entries:
        if entry not in used:
            yield f"the expectation about {entry.cells[0]!r} is for JAX {entry.jax}, and the table has no such release"
