"""Compares a table with what was written down of these releases, strictly both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Standing, Verdict
from ..reports.table import said
from .records import Record
from .release import Release

_WORDS = {
    Standing.UNEXPECTED: "not expected to fail",
    Standing.CHANGED_FAILURE: "expected to fail in another way",
    Standing.UNEXPECTED_PASS: "expected to fail",
}


def problems_of(
    records: Sequence[Record], releases: Sequence[Release], cells: Sequence[str], expectations: Expectations
) -> tuple[str, ...]:
    """What is not as written down, in words."""
    return (*_surprises(records, releases, cells, expectations), *_stale(releases, cells, expectations))


def harness_errors(records: Sequence[Record], releases: Sequence[Release], cells: Sequence[str]) -> Iterator[str]:
    """The runs in which the suite itself has failed: they show nothing of a release."""
    for record in records:
        if record.outcome.verdict is Verdict.HARNESS_ERROR and record.release in releases and record.cell in cells:
            witness = (record.outcome.reason.splitlines() or [""])[-1][:200]
            yield f"{record.cell} with {record.release.label}: the suite itself failed: {witness}"


def _surprises(
    records: Sequence[Record], releases: Sequence[Release], cells: Sequence[str], expectations: Expectations
) -> Iterator[str]:
    outcomes: dict[tuple[Release, str], list[Outcome]] = {}
    for record in records:
        outcomes.setdefault((record.release, record.cell), []).append(record.outcome)
    for release in releases:
        here = expectations.applicable(release.jax)
        for cell in cells:
            if (release, cell) not in outcomes:
                yield f"{cell} with {release.label}: not run"
            for outcome in outcomes.get((release, cell), ()):
                yield from _surprise(cell, release, outcome, here)


def _surprise(cell: str, release: Release, outcome: Outcome, here: Expectations) -> Iterator[str]:
    standing = here.standing(cell, outcome)
    if standing.acceptable:
        return
    entry = here.of(cell)
    stage = f" at {entry.stage.value}" if entry and entry.stage else ""
    expected = f": {entry.verdict}{stage}" if entry else ""
    witness = f": {outcome.reason.splitlines()[0][:200]}" if outcome.reason else ""
    yield f"{cell} with {release.label}: {said(outcome)}, {_WORDS[standing]}{expected}{witness}"


def _stale(releases: Sequence[Release], cells: Sequence[str], expectations: Expectations) -> Iterator[str]:
    """Globs that match no cell, and entries for no release of the table."""
    for pattern in expectations.unmatched(cells):
        yield f"the expectation {pattern!r} matches no cell of the table"
    used = {entry for release in releases for entry in expectations.applicable(release.jax).entries}
    for entry in expectations.entries:
        if entry not in used:
            yield f"the expectation about {entry.cells[0]!r} is for JAX {entry.jax}, and the table has no such release"
