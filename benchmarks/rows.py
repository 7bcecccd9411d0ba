"""One compared figure: what was measured, against what, the ratio with its spread, and the target for it.

Everything is a cost, so a smaller ratio is better. A machine's own speed cancels out, which is why only ratios have
targets and only ratios are compared between runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

# Two processes differ by more than the rounds within one, if only in where memory happens to lie. So a ratio that is
# worse by less than this share is not called worse, however small the spread of its rounds.
BETWEEN_PROCESSES = 0.05


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table, and an object in the JSON file."""

    benchmark: str
    what: str
    against: str
    unit: str
    # Medians over all rounds, in `unit`.
    ours: float
    theirs: float
    # Over the rounds: the median and the quartiles of the ratios, and the ratio of the smallest figures.
    ratio: float
    low: float
    high: float
    best: float
    # None for what is measured to explain the others.
    target: float | None

    @property
    def name(self) -> str:
        """What the row is known by from run to run."""
        return f"{self.benchmark}: {self.what} / {self.against}"

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.target is None:
            return "-"
        return "met" if self.ratio <= self.target else "MISSED"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The three quartiles, which of a single value are that value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compared(
    benchmark: str,
    what: str,
    against: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: float | None,
    unit: str = "us",
) -> Row:
    """Compare two series that were measured in turns, the n-th of the one with the n-th of the other.

    The ratio is the median of the ratios of the rounds rather than the ratio of the medians: whatever else the machine
    did in a round fell on both.
    """
    low, ratio, high = quartiles([our / their for our, their in zip(ours, theirs, strict=True)])
    return Row(
        benchmark=benchmark,
        what=what,
        against=against,
        unit=unit,
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        ratio=ratio,
        low=low,
        high=high,
        best=min(ours) / min(theirs),
        target=target,
    )


def worsened(old: Row, new: Row) -> bool:
    """Whether the ratio is worse by more than the spread of both: the upper half of the old, the lower of the new."""
    spread = (old.high - old.ratio) + (new.ratio - new.low)
    return new.ratio - old.ratio > max(spread, BETWEEN_PROCESSES * old.ratio)
