"""The search: which release of a line is the first to behave in another way.

It is written as if all runs were known, and `Evidence` raises `MissingRunsError` where they are not. Then these runs
are made, and the search starts again with them. So any journal of runs is a state to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from .evidence import Evidence, Relation


class Kind(Enum):
    FOUND = "found"
    SAME = "same"
    """The ends do not differ, and nothing between them was seen to."""
    CANNOT_TELL = "cannot tell"
    UNTESTABLE = "untestable"
    """An end that was named, or all releases, cannot be tested."""
    ALONE = "alone"
    """Only one release can be tested, so there is nothing to compare it with."""


@dataclass(frozen=True)
class Change:
    """The outcome changes after `before`, and has changed in `after`; what lies between could not be tested."""

    before: int
    after: int
    skipped: tuple[tuple[int, str], ...] = ()
    """Each release between the two, with the reason."""
    unclear: tuple[int, ...] = ()
    """Those of them that ran, and are not certain to be like either."""
    varying: tuple[int, ...] = ()
    """Those of the two that did something else when they ran again."""


@dataclass(frozen=True)
class Answer:
    kind: Kind
    old: int
    new: int
    """The ends that were compared."""
    changes: tuple[Change, ...] = ()
    untestable: tuple[tuple[int, str], ...] = ()
    """Ends that could not be tested, with the reasons."""


Found = TypeVar("Found")
Search: TypeAlias = Callable[[Evidence], Found]
"""Works out an answer from the runs of one subject, and asks for more of them by `MissingRunsError`."""


def between(old: int, new: int) -> Search[Answer]:
    """Find the first change between two ends that were named."""

    def search(evidence: Evidence) -> Answer:
        if ends := _untestable(evidence, (old, new)):
            return Answer(Kind.UNTESTABLE, old, new, untestable=ends)
        if not evidence.differ(old, new):
            return no_difference(evidence, old, new)
        return confirmed(evidence, old, new, _changes(evidence, old, new, first=True)[:1])

    return search


def whole(count: int, named: Sequence[int] = ()) -> Search[Answer]:
    """Find every change that shows between the oldest and the newest release that can be tested.

    If these two are alike, releases between them are tried until one differs, or all were tried. An end that was
    named has no other release in its place.
    """

    def search(evidence: Evidence) -> Answer:
        if ends := _untestable(evidence, named):
            return Answer(Kind.UNTESTABLE, 0, count - 1, untestable=ends)
        old = next((index for index in range(count) if evidence.why_untestable(index) is None), None)
        if old is None:
            return Answer(Kind.UNTESTABLE, 0, count - 1, untestable=_untestable(evidence, range(count)))
        new = next(index for index in reversed(range(count)) if evidence.why_untestable(index) is None)
        skipped = _untestable(evidence, (*range(old), *range(new + 1, count)))
        if old == new:
            return Answer(Kind.ALONE, old, new, untestable=skipped)
        if evidence.differ(old, new):
            answer = confirmed(evidence, old, new, _changes(evidence, old, new, first=False))
        else:
            answer = _island(evidence, old, new)
        return Answer(answer.kind, old, new, answer.changes, skipped)

    return search


def _changes(evidence: Evidence, old: int, new: int, first: bool) -> list[Change]:
    """The changes between two releases that differ; with `first`, the first one comes first and others may lack."""
    skipped: dict[int, str] = {}
    unclear: list[int] = []
    while True:
        left = [index for index in range(old + 1, new) if index not in skipped]
        if not left:
            inside = tuple((index, skipped[index]) for index in range(old + 1, new))
            return [Change(old, new, inside, tuple(index for index in unclear if old < index < new))]
        middle = min(left, key=lambda index: abs(2 * index - old - new))
        if reason := evidence.why_untestable(middle):
            skipped[middle] = reason
            continue
        relation = evidence.relation(middle, old, new)
        if relation is Relation.UNCLEAR:
            skipped[middle] = f"cannot tell, {evidence.rate(middle)}"
            unclear.append(middle)
        elif relation is Relation.OLD:
            old = middle
        elif relation is Relation.NEW or first:
            new = middle
        else:
            return _changes(evidence, old, middle, first) + _changes(evidence, middle, new, first)


def _island(evidence: Evidence, old: int, new: int) -> Answer:
    """Two ends that are alike, and perhaps a release between them that is not."""
    for index in _halving(old, new):
        if evidence.why_untestable(index) is None and evidence.differ(old, index) and evidence.differ(index, new):
            inside = _changes(evidence, old, index, first=False) + _changes(evidence, index, new, first=False)
            return confirmed(evidence, old, new, inside)
    return no_difference(evidence, old, new)


def _halving(old: int, new: int) -> Iterator[int]:
    """Every release between two, such that each few of them lie far apart."""
    gaps = [(old, new)]
    for low, high in gaps:
        if high - low > 1:
            middle = (low + high) // 2
            yield middle
            gaps += [(low, middle), (middle, high)]


def confirmed(evidence: Evidence, old: int, new: int, changes: list[Change]) -> Answer:
    """The answer with these changes, if what lies beside each of them does the same again."""
    checked = [
        replace(change, varying=tuple(index for index in (change.before, change.after) if evidence.varies(index)))
        for change in changes
    ]
    doubtful = any(change.varying or change.unclear for change in checked)
    return Answer(Kind.CANNOT_TELL if doubtful else Kind.FOUND, old, new, tuple(checked))


def no_difference(evidence: Evidence, *releases: int) -> Answer:
    """Releases that may well be alike; they are, as far as runs can tell, if every run had the same outcome."""
    old, new = releases[0], releases[-1]
    varying = any(evidence.varies(end) for end in {old, new})
    if varying or (evidence.rule.by_chance and not evidence.always_the_same(*releases)):
        return Answer(Kind.CANNOT_TELL, old, new)
    return Answer(Kind.SAME, old, new)


def _untestable(evidence: Evidence, ends: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """Those of the ends that cannot be tested, with the reasons."""
    return tuple((end, why) for end in ends if (why := evidence.why_untestable(end)) is not None)
