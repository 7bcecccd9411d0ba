"""Whether two releases behave alike, as far as the runs at hand can tell; where these are too few, it asks for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..oracle.rates import chance_of_difference, interval
from .samples import Sample, counted

FIRST_BATCH = 10
CONFIDENCE = 0.99
MOST_RUNS = 320
CONFIRMING_RUNS = 3


@dataclass(frozen=True)
class Rule:
    """How often a release runs, and how sure a difference must be."""

    batches: tuple[int, ...] = (1,)
    """The numbers of runs after which releases are compared; a later one is asked for if the earlier cannot tell."""
    confidence: float = CONFIDENCE
    confirming: int = CONFIRMING_RUNS
    """Without statistics, how often the two releases beside a change run: they must do the same each time."""

    @property
    def by_chance(self) -> bool:
        """Whether outcomes may vary, so that rates are compared."""
        return self.batches != (1,)


def rule_of(runs: int | None, confidence: float | None) -> Rule:
    """`runs` alone is a fixed number; with a confidence it is the most, and only as many run as are needed."""
    if confidence is None:
        return Rule() if runs is None else Rule((runs,), confirming=min(runs, CONFIRMING_RUNS))
    most = runs or MOST_RUNS
    batches = [most]
    while batches[0] > FIRST_BATCH:
        batches.insert(0, max(FIRST_BATCH, batches[0] // 2))
    return Rule(tuple(dict.fromkeys(batches)), confidence)


class MissingRunsError(Exception):
    """A release must run so often in all before the search can go on."""

    def __init__(self, index: int, runs: int) -> None:
        super().__init__(f"release {index} must run {runs} times")
        self.index, self.runs = index, runs


class Relation(Enum):
    """How a release behaves, beside two that differ."""

    OLD = "old"
    NEW = "new"
    OWN = "own"
    """It differs from both."""
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Evidence:
    """The runs of one subject, a cell or a script, in each release by its place in the line."""

    samples: Mapping[int, Sequence[Sample]]
    rule: Rule
    given: frozenset[int] = frozenset()
    """Releases that do not run again: all comparisons are with the runs that they have."""

    def why_untestable(self, index: int) -> str | None:
        """The reason if nothing can be found out in a release; asks for its first run."""
        ran = self.samples.get(index, ())
        if not ran:
            raise MissingRunsError(index, self.rule.batches[0])
        return next((sample.words for sample in ran if sample.untestable), None)

    def differ(self, one: int, other: int) -> bool:
        """Whether two releases certainly differ."""
        return any(self._differ(one, other, runs) for runs in self.rule.batches)

    def relation(self, index: int, old: int, new: int) -> Relation:
        for runs in self.rule.batches:
            from_old, from_new = self._differ(index, old, runs), self._differ(index, new, runs)
            if from_old:
                return Relation.OWN if from_new else Relation.NEW
            # An outcome that the older end never had may be a rate that rises: more runs can tell.
            if from_new and {*self._counts(index, runs)} <= {*self._counts(old, runs)}:
                return Relation.OLD
        return Relation.UNCLEAR

    def varies(self, index: int) -> bool:
        """Where rates are not compared: whether a release does something else when it runs again."""
        if self.rule.by_chance:
            return False
        return len(self._counts(index, self.rule.confirming)) > 1

    def always_the_same(self, *indexes: int) -> bool:
        """Whether all runs of all these releases had one outcome."""
        return len({words for index in indexes for words in counted(self.samples[index])}) == 1

    def rate(self, index: int) -> str:
        return rate(self.samples[index], self.rule.confidence)

    def _differ(self, one: int, other: int, runs: int) -> bool:
        counts, others = self._counts(one, runs), self._counts(other, runs)
        if not self.rule.by_chance:
            return {*counts} != {*others}
        # Each look at the runs may find a difference by chance: all looks together may do so by 1 - confidence.
        allowed = (1 - self.rule.confidence) / len(self.rule.batches)
        return chance_of_difference(counts, others) <= allowed

    def _counts(self, index: int, runs: int) -> Counter[str]:
        ran = self.samples.get(index, ())
        if index in self.given:
            return counted(ran)
        if len(ran) < runs and not any(sample.untestable for sample in ran):
            raise MissingRunsError(index, runs)
        return counted(ran[:runs])


def rate(ran: Sequence[Sample], confidence: float) -> str:
    """How many of these runs failed, and the interval that holds the true rate."""
    failed = sum(not sample.passed for sample in ran)
    low, high = interval(failed, len(ran), confidence)
    return f"{failed} of {len(ran)} fail (rate {low:.3f} to {high:.3f})"
