"""The outcomes of several runs of one cell: how often it failed, and in which ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .rates import CONFIDENCE, interval, percent
from .verdicts import Outcome, Verdict, in_words


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
    """What the runs of a cell have shown."""

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
        ways = [Way(*way, count, first[way].reason.partition("\n")[0][:300]) for way, count in counts.items()]
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
