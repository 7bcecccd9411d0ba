"""Compares outcomes with what was written down of these releases, strictly both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..expectations.entries import Expectations
from ..oracle.verdicts import ExpectationStatus, Outcome, Verdict
from ..reports.table import said
from .release import Release
from .table import Outcomes, tried

_WORDS = {
    ExpectationStatus.UNEXPECTED: "not expected to fail",
    ExpectationStatus.CHANGED_FAILURE: "expected to fail in another way",
    ExpectationStatus.UNEXPECTED_PASS: "expected to fail",
}


def problems_of(outcomes: Outcomes, cells: Sequence[str], expectations: Expectations) -> Iterator[str]:
    """What is not as written down: outcomes, globs that match no cell, and entries for no release of the table."""
    used = set()
    for release in tried(outcomes):
        here = expectations.applicable(release.jax)
        used |= {*here.entries}
        for cell in cells:
            if not outcomes.get((release, cell)):
                yield f"{cell} with {release.label}: not run"
            for outcome in outcomes.get((release, cell), ()):
                yield from _surprise(cell, release, outcome, here)
    for pattern in expectations.unmatched(cells):
        yield f"the expectation {pattern!r} matches no cell of the table"
    for entry in expectations.entries:
        if entry not in used:
            yield f"the expectation about {entry.cells[0]!r} is for JAX {entry.jax}, and the table has no such release"


def harness_errors(outcomes: Outcomes) -> Iterator[str]:
    """The runs in which the suite itself has failed: they show nothing of a release."""
    for (release, cell), runs in outcomes.items():
        for outcome in runs:
            if outcome.verdict is Verdict.HARNESS_ERROR:
                witness = (outcome.reason.splitlines() or [""])[-1][:200]
                yield f"{cell} with {release.label}: the suite itself failed: {witness}"


def _surprise(cell: str, release: Release, outcome: Outcome, here: Expectations) -> Iterator[str]:
    standing = here.standing(cell, outcome)
    if standing.acceptable:
        return
    entry = here.of(cell)
    stage = f" at {entry.stage.value}" if entry and entry.stage else ""
    expected = f": {entry.verdict}{stage}" if entry else ""
    witness = f": {outcome.reason.splitlines()[0][:200]}" if outcome.reason else ""
    yield f"{cell} with {release.label}: {said(outcome)}, {_WORDS[standing]}{expected}{witness}"
