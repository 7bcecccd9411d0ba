"""The outcomes of several runs of one cell: how often it failed, in which ways, and whether two rates differ.

SciPy, on which JAX depends, takes a second to import, and most commands compare no rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .verdicts import Outcome, Verdict, in_words

CONFIDENCE = 0.95


def interval(failures: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of Clopper and Pearson for the rate of failure, two-sided.

    It is rather too wide than too narrow, also for few runs and for rates near 0 and 1: no failure in 100 runs allows a
    rate of up to 3.6 %.
    """
    from scipy.stats import binomtest

    found = binomtest(failures, runs).proportion_ci(confidence)
    return float(found.low), float(found.high)


def percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def chance_of_difference(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The probability that equal rates show counts of outcomes that differ by this much or more.

    Each kind of outcome is tested against all others together, by Fisher's exact test. The smallest probability counts,
    times the number of tests.
    """
    from scipy.stats import fisher_exact

    kinds = sorted({*one, *other})
    if len(kinds) < 2:
        return 1.0
    runs, other_runs = sum(one.values()), sum(other.values())
    tables = ([[c.get(kind, 0), n - c.get(kind, 0)] for c, n in ((one, runs), (other, other_runs))] for kind in kinds)
    smallest = min(fisher_exact(table).pvalue for table in tables)
    # Of two kinds, one count decides the other: that is one test.
    return float(min(1.0, smallest * (len(kinds) if len(kinds) > 2 else 1)))


@dataclass(frozen=True)
class Way:
    """Outcomes that are alike, and their number."""

    verdict: str
    """As `Outcome.label` writes it."""
    stage: str | None
    anomaly: str
    count: int
    witness: str
    """The first line of the first witness."""

    @property
    def headline(self) -> str:
        return in_words(self.verdict, self.stage, self.anomaly)


@dataclass(frozen=True)
class Repetition:
    ways: tuple[Way, ...]
    """The most frequent way first."""

    @property
    def runs(self) -> int:
        return sum(way.count for way in self.ways)

    @property
    def harness_errors(self) -> int:
        """The runs in which the suite itself failed: they show nothing, so the rate leaves them out."""
        return sum(way.count for way in self.ways if way.verdict == Verdict.HARNESS_ERROR.value)

    @property
    def judged(self) -> int:
        return self.runs - self.harness_errors

    @property
    def failures(self) -> int:
        return self.judged - sum(way.count for way in self.ways if way.verdict == Verdict.PASS.value)

    @property
    def rate(self) -> float:
        return self.failures / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.failures, self.judged) if self.judged else (0.0, 1.0)

    @property
    def words(self) -> str:
        low, high = map(percent, self.interval)
        rate = (
            f"{self.failures} of {self.judged} runs failed:"
            f" {percent(self.rate)}, {100 * CONFIDENCE:.0f} % interval {low} to {high}"
        )
        if not self.harness_errors:
            return rate
        errors = f"{self.harness_errors} of {self.runs} runs ended with an error of the suite"
        return f"{rate}; {errors}" if self.judged else errors

    @property
    def ways_in_words(self) -> str:
        return ", ".join(f"{way.count} x {way.headline}" for way in self.ways)

    @staticmethod
    def of(outcomes: Sequence[Outcome]) -> Repetition:
        first: dict[tuple[str, str | None, str], Outcome] = {}
        counts: dict[tuple[str, str | None, str], int] = {}
        for outcome in outcomes:
            way = (outcome.label, outcome.stage.value if outcome.stage else None, outcome.anomaly)
            first.setdefault(way, outcome)
            counts[way] = counts.get(way, 0) + 1
        ways = [Way(*way, count, first[way].reason.partition("\n")[0]) for way, count in counts.items()]
        return Repetition(tuple(sorted(ways, key=lambda way: -way.count)))

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "harness_errors": self.harness_errors,
            "failures": self.failures,
            "rate": self.rate,
            "interval": list(self.interval),
            "confidence": CONFIDENCE,
            "outcomes": [asdict(way) for way in self.ways],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Repetition:
        """The repetition that this JSON describes: the outcomes alone count, the rest follows from them."""
        ways = tuple(
            Way(
                str(way["verdict"]),
                None if way["stage"] is None else str(way["stage"]),
                str(way["anomaly"]),
                int(way["count"]),
                str(way["witness"]),
            )
            for way in data["outcomes"]
        )
        if not ways or min(way.count for way in ways) < 1:
            raise ValueError("a repetition has at least one run")
        return Repetition(ways)
