"""The search for the release of a line that is the first to behave in another way, and how sure that is.

It is written as if all runs were known, and `Evidence` raises `MissingRunsError` where they are not. Then these runs
are made, and the search starts again with them. So any journal of runs is a state to go on from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Literal, TypeAlias

from ..oracle.repetition import chance_of_difference
from ..releases.environments import ReleaseError
from .subjects import Sample, counted

CONFIDENCE = 0.99
FIRST_LOOK = 10
CONFIRMING_RUNS = 3
"""How often the two releases beside a change run without statistics: they must do the same each time."""


class Kind(Enum):
    FOUND = "found"
    CANNOT_TELL = "cannot tell"
    UNTESTABLE = "untestable"
    """An end that was named, or all releases, or all but one."""
    SAME = "same"
    """The ends do not differ, and nothing between them was seen to."""
    UNFINISHED = "unfinished"
    """The search was interrupted; the changes lie somewhere between what has run and differs."""


@dataclass(frozen=True)
class Change:
    """The outcome changes after `before`, and has changed in `after`; what lies between shows nothing."""

    before: int
    after: int
    unclear: tuple[int, ...] = ()
    """Those of them, or of the two, of which chance may explain what they did."""


@dataclass(frozen=True)
class Answer:
    kind: Kind
    ends: tuple[int, ...]
    """The two that were compared, or those that cannot be."""
    changes: tuple[Change, ...] = ()


Relation: TypeAlias = Literal["as old", "as new", "as neither", "unclear"]
"""How a release behaves, beside two that differ."""


class MissingRunsError(Exception):
    """The place of a release, and how often it must run in all before the search can go on."""


@dataclass(frozen=True)
class Evidence:
    """The runs of one subject, a cell or a script, in each release by its place in the line."""

    samples: Mapping[int, Sequence[Sample]]
    runs: int = 1
    """How often each release runs at most; if more than once, outcomes may vary, and rates are compared."""

    @property
    def looks(self) -> list[int]:
        """The numbers of runs after which releases are compared: more of them run if the earlier are not enough."""
        found = [self.runs]
        while found[0] > FIRST_LOOK:
            found.insert(0, max(FIRST_LOOK, found[0] // 2))
        return found

    def testable(self, index: int) -> bool:
        return not any(sample.untestable for sample in self._ran(index, self.looks[0]))

    def differ(self, one: int, other: int) -> bool:
        """Whether two releases certainly differ."""
        return any(self._differ(one, other, runs) for runs in self.looks)

    def relation(self, index: int, old: int, new: int) -> Relation:
        for runs in self.looks:
            from_old, from_new = self._differ(index, old, runs), self._differ(index, new, runs)
            if from_old:
                return "as neither" if from_new else "as new"
            # An outcome that the older end never had may be a rate that rises.
            if from_new and self._counts(index, runs).keys() <= self._counts(old, runs).keys():
                return "as old"
        return "unclear"

    def varies(self, *indexes: int) -> bool:
        """Whether runs of these releases, which do not differ, had several outcomes."""
        return (
            len({sample.words for index in indexes for sample in self._ran(index, max(self.runs, CONFIRMING_RUNS))}) > 1
        )

    def _differ(self, one: int, other: int, runs: int) -> bool:
        counts, others = self._counts(one, runs), self._counts(other, runs)
        if self.runs == 1:
            return counts != others
        # Each look may find a difference by chance: all together may do so by 1 - confidence.
        return chance_of_difference(counts, others) <= (1 - CONFIDENCE) / len(self.looks)

    def _counts(self, index: int, runs: int) -> Counter[str]:
        return counted(self._ran(index, runs)[:runs])

    def _ran(self, index: int, runs: int) -> Sequence[Sample]:
        ran = self.samples.get(index, ())
        if len(ran) < runs and not any(sample.untestable for sample in ran):
            raise MissingRunsError(index, runs)
        return ran


def change_in(count: int, named: Sequence[int], evidence: Evidence) -> Answer:
    """Search a line for each change that shows between the oldest and the newest release that can be tested.

    An end that was named has no other release in its place. Of two named ends, only the first change counts.
    Otherwise, if the ends are alike, releases between them are tried until one differs, or all were tried.
    """
    if bad := tuple(end for end in named if not evidence.testable(end)):
        return Answer(Kind.UNTESTABLE, bad)
    old = next((index for index in range(count) if evidence.testable(index)), None)
    new = next((index for index in reversed(range(count)) if evidence.testable(index)), None)
    if old is None or new is None or old == new:
        return Answer(Kind.UNTESTABLE, tuple(index for index in range(count) if index != old))
    both = len(named) == 2
    ends = [old, new]
    if not evidence.differ(old, new):
        inside = () if both else (one for one in _halving(old, new) if evidence.testable(one))
        island = next((one for one in inside if evidence.differ(old, one) and evidence.differ(one, new)), None)
        if island is None:
            return Answer(Kind.CANNOT_TELL if evidence.varies(old, new) else Kind.SAME, (old, new))
        ends = [old, island, new]
    changes = [change for pair in pairwise(ends) for change in _changes(evidence, *pair, both)]
    if evidence.runs == 1:
        # What lies beside a change runs again, and must do the same.
        changes = [
            replace(change, unclear=tuple(one for one in (change.before, change.after) if evidence.varies(one)))
            for change in changes
        ]
    unclear = any(change.unclear for change in changes)
    return Answer(Kind.CANNOT_TELL if unclear else Kind.FOUND, (old, new), tuple(changes))


def _changes(evidence: Evidence, old: int, new: int, first: bool) -> list[Change]:
    """The changes between two releases that differ; with `first`, the first one alone."""
    untold: set[int] = set()
    unclear: list[int] = []
    while left := [index for index in range(old + 1, new) if index not in untold]:
        middle = min(left, key=lambda index: abs(2 * index - old - new))
        relation = evidence.relation(middle, old, new) if evidence.testable(middle) else None
        if relation in (None, "unclear"):
            untold.add(middle)
            unclear += [middle] if relation else []
        elif relation == "as old":
            old = middle
        elif relation == "as new" or first:
            new = middle
        else:
            return _changes(evidence, old, middle, first) + _changes(evidence, middle, new, first)
    return [Change(old, new, tuple(index for index in unclear if old < index < new))]


def _halving(old: int, new: int) -> Iterator[int]:
    """Every release between two, such that each few of them lie far apart."""
    gaps = [(old, new)]
    for low, high in gaps:
        if high - low > 1:
            middle = (low + high) // 2
            yield middle
            gaps += [(low, middle), (middle, high)]


Samples: TypeAlias = dict[str, dict[int, list[Sample]]]
"""By subject and by the place of the release."""

Probe: TypeAlias = Callable[[int, Mapping[str, int]], Iterator[tuple[str, Sample]]]
"""Runs subjects so often each, in the release at a place of the line; raises `ReleaseError` if it cannot be tried."""


def answers(count: int, named: Sequence[int], runs: int, probe: Probe, samples: Samples) -> dict[str, Answer]:
    """The answer for each subject; after an interrupt, what is found so far.

    `samples` has what is known already, and all that is known afterwards.
    """
    finished: dict[str, Answer] = {}
    interrupted = False
    while True:
        needs: dict[int, dict[str, int]] = {}
        for subject, ran in samples.items():
            if subject not in finished:
                try:
                    finished[subject] = change_in(count, named, Evidence(ran, runs))
                except MissingRunsError as missing:
                    index, needed = missing.args
                    needs.setdefault(index, {})[subject] = needed - len(ran.get(index, ()))
        if interrupted:
            finished |= {subject: _unfinished(samples[subject]) for here in needs.values() for subject in here}
        if interrupted or not needs:
            return finished
        # All cells that need this release run there together.
        index, lacking = next(iter(needs.items()))
        try:
            for subject, sample in probe(index, lacking):
                samples[subject].setdefault(index, []).append(sample)
        except KeyboardInterrupt:
            interrupted = True
        except ReleaseError as error:
            for subject, ran in samples.items():
                if subject in lacking or not ran.get(index):
                    ran.setdefault(index, []).append(Sample(str(error), untestable=True))


def _unfinished(ran: Mapping[int, Sequence[Sample]]) -> Answer:
    ended, differ = _seen(ran)
    return Answer(Kind.UNFINISHED, tuple(ended), tuple(Change(*pair) for pair in differ))


def left_after(index: int, count: int, samples: Samples, subjects: Iterable[str]) -> int:
    """About how many releases will run after this one: both ends, then half of those between two that differ."""
    found = [0]
    for ran in map(samples.__getitem__, subjects):
        ended, differ = _seen(ran)
        ends = max(0, 2 - len(ended))
        untried = [[one for one in range(low + 1, high) if not ran.get(one)] for low, high in differ or [(-1, count)]]
        if any(index in some for some in untried):
            found.append(sum(max(0, len(some) - ends).bit_length() for some in untried) + ends - 1)
    return max(found)


def _seen(ran: Mapping[int, Sequence[Sample]]) -> tuple[list[int], list[tuple[int, int]]]:
    """The releases that could be tested so far, and those next to each other that differ."""
    ended = sorted(index for index, some in ran.items() if some and not any(one.untestable for one in some))
    return ended, [pair for pair in pairwise(ended) if counted(ran[pair[0]]).keys() != counted(ran[pair[1]]).keys()]
