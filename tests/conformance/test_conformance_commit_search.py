"""The search among commits, which may have merges, without a repository."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bisecting.commits import among
from conformance.bisecting.evidence import rule_of
from conformance.bisecting.samples import Sample, untestable
from conformance.bisecting.searching import answers

pytestmark = pytest.mark.contract("C9")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Parents of each commit; the first has none, and the last has all others as ancestors."""
    count = draw(st.integers(2, 16))
    parents: list[tuple[int, ...]] = [()]
    for index in range(1, count - 1):
        # One without parents is the first of a branch that forked before the first commit.
        parents.append(tuple(sorted(draw(st.sets(st.integers(max(0, index - 4), index - 1), max_size=2)))))
    heads = {*range(count - 1)} - {parent for each in parents for parent in each}
    return [*parents, tuple(sorted(heads))]


def descendants(parents: Sequence[Sequence[int]], of: int) -> set[int]:
    found = {of}
    for index in range(of + 1, len(parents)):
        if found & {*parents[index]}:
            found.add(index)
    return found


@given(histories(), st.data())
def test_the_first_bad_commit_or_those_that_may_be_it(parents: list[tuple[int, ...]], data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, len(parents) - 1))
    missing = data.draw(st.sets(st.integers(1, len(parents) - 1))) - {len(parents) - 1}
    bad = descendants(parents, culprit)
    forked_before = {*range(len(parents))} - descendants(parents, 0)

    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        assert index not in forked_before
        for subject in subjects:
            yield subject, untestable("no build") if index in missing else Sample("fail" if index in bad else "pass")

    (change,) = answers(["cell"], among(parents), rule_of(1, None), probe, {})["cell"].changes
    assert change.before not in bad
    assert change.after in bad
    suspects = {change.after, *(index for index, _ in change.skipped)}
    assert culprit in suspects
    assert suspects - {change.after} <= missing | forked_before
    if not missing and culprit not in forked_before:
        assert change.after == culprit


@pytest.mark.parametrize(
    ("culprit", "before", "skipped"),
    [(5, 4, []), (4, 0, [(index, "its branch forked before the older end") for index in (1, 2, 3)])],
)
def test_a_branch_that_forked_before_the_older_end(culprit: int, before: int, skipped: list[tuple[int, str]]) -> None:
    """It fails as it lacks a fix that the older end has."""
    parents = [(), (), (1,), (2,), (0, 3), (4,)]
    bad = {1, 2, 3, *range(culprit, 6)}

    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        yield subjects[0], Sample("fail" if index in bad else "pass")

    (change,) = answers(["cell"], among(parents), rule_of(1, None), probe, {})["cell"].changes
    assert (change.before, change.after) == (before, culprit)
    assert [*change.skipped] == skipped


def test_a_line_of_many_commits_takes_few_probes() -> None:
    probed = []

    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        probed.append(index)
        yield subjects[0], Sample("fail" if index >= 700 else "pass")

    parents = [(), *((index,) for index in range(999))]
    (change,) = answers(["cell"], among(parents), rule_of(1, None), probe, {})["cell"].changes
    assert (change.before, change.after) == (699, 700)
    assert len(probed) <= 12
