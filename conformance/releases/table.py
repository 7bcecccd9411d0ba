"""Cells by release: the table of their outcomes, and whether these are as written down, strictly both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..expectations.entries import Expectation, Expectations
from ..oracle.verdicts import Outcome, Verdict
from ..reports.table import Column, Row, Seen, Table, consecutive
from ..reports.visible import in_a_line
from ..spec.versions import version_matches
from .environments import Release

Outcomes: TypeAlias = Mapping[tuple[Release, str], Outcome]
"""By release and cell."""


def tried(outcomes: Outcomes) -> tuple[Release, ...]:
    """The releases with which a cell ran, the oldest first: the columns of their table."""
    return tuple(sorted({release for release, _ in outcomes}, key=lambda release: release.order))


def table_of(outcomes: Outcomes, cells: Sequence[str], known: Expectations, unfinished: str = "") -> Table:
    columns = tried(outcomes)
    seen = {place: Seen.of(outcome.words, outcome.reason) for place, outcome in outcomes.items()}
    rows = tuple(
        Row(
            cell,
            tuple(seen.get((release, cell)) for release in columns),
            _by_chance(cell, outcomes, known),
            _report_of(cell, outcomes, known),
        )
        for cell in cells
    )
    return Table(tuple(Column(release.label) for release in columns), rows, True, unfinished)


def _report_of(cell: str, outcomes: Outcomes, known: Expectations) -> str:
    """The report of the first known failure that the cell shows with a release."""
    ran = ((release.jax, outcome.words) for (release, name), outcome in outcomes.items() if name == cell)
    return next(iter(known.reports_of(cell, (one for one in ran if one[1] != Verdict.PASS.value))), "")


def _by_chance(cell: str, outcomes: Outcomes, known: Expectations) -> bool:
    """Whether one entry of chance explains the outcome of the cell with each release."""
    ran = {release.jax: outcome for (release, name), outcome in outcomes.items() if name == cell}
    return any(
        entry.intermittent
        and entry.matches(cell)
        and all(
            version_matches(jax, entry.jax) and (outcome.verdict is Verdict.PASS or entry.met_by(outcome))
            for jax, outcome in ran.items()
        )
        for entry in known.entries
    )


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
