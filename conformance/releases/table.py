"""Cells by release: the table of their outcomes, and whether these are as written down, strictly both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..expectations.entries import Expectation, Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..reports.table import Column, Row, Seen, Table, consecutive
from ..reports.visible import in_a_line
from .environments import Release

Outcomes: TypeAlias = Mapping[tuple[Release, str], Outcome]
"""By release and cell."""


def tried(outcomes: Outcomes) -> tuple[Release, ...]:
    """The releases with which a cell ran, the oldest first: the columns of their table."""
    return tuple(sorted({release for release, _ in outcomes}, key=lambda release: release.order))


def table_of(outcomes: Outcomes, cells: Sequence[str], known: Expectations, unfinished: str = "") -> Table:
    columns = tried(outcomes)
    seen = {place: Seen.of(outcome.words, outcome.reason) for place, outcome in outcomes.items()}

    def row(cell: str) -> Row:
        ran = {release: outcomes[release, cell] for release in columns if (release, cell) in outcomes}
        met = {release: known.explaining(cell, release.jax, outcome.words) for release, outcome in ran.items()}
        by_chance = all(entry and entry.intermittent for entry in met.values())
        reports = (entry.report[0] for one, entry in met.items() if entry and ran[one].verdict is not Verdict.PASS)
        return Row(cell, tuple(seen.get((release, cell)) for release in columns), by_chance, next(reports, ""))

    return Table(tuple(Column(release.label) for release in columns), tuple(map(row, cells)), True, unfinished)


def known_failures(outcomes: Outcomes, known: Mapping[str, Expectation]) -> str:
    """The known failures whose cells ran: of each its report, its cell, and its outcome by release."""
    lines = ["known failures:"]
    for cell, entry in known.items():
        words = {
            release.label: outcomes[release, cell].words for release in tried(outcomes) if (release, cell) in outcomes
        }
        if words:
            periods = consecutive([*words], [*words.values()])
            lines += [f"  {entry.link}", f"    {cell}: {'; '.join(f'{what} in {where}' for where, what in periods)}"]
    return "\n".join(map(in_a_line, lines))


def problems_of(outcomes: Outcomes, cells: Sequence[str], expectations: Expectations) -> Iterator[str]:
    """What is not as written down: outcomes, globs that match no cell, and entries for no release of the table."""
    used = set()
    for release in tried(outcomes):
        here = expectations.applicable(release.jax)
        used |= {*here.entries}
        for cell, outcome in ((cell, outcomes[release, cell]) for cell in cells if (release, cell) in outcomes):
            status, entry = here.status(cell, outcome), here.of(cell)
            if not status.acceptable:
                stage = entry.stage.value if entry and entry.stage else "any stage"
                expected = f", not {entry.verdict} at {stage}" if entry else ""
                kind, witness = status.value.replace("_", " "), outcome.reason.partition("\n")[0][:200]
                yield f"{cell} with {release.label}: {kind}, {outcome.words}{expected}: {witness}"
    for pattern in expectations.unmatched(cells):
        yield f"the expectation {pattern!r} matches no cell of the table"
    for entry in expectations.entries:
        if entry not in used:
            yield f"the expectation about {entry.cells[0]!r} is for JAX {entry.jax}, and the table has no such release"
