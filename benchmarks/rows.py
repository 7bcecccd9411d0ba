"""One comparison of two costs: the ratio with its spread, and its target.

A smaller ratio is better. The machine's speed cancels out in a ratio, so only ratios have targets, and only ratios are
compared between runs.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

# Two processes differ by more than the rounds of one process, for example in the addresses of memory. So a ratio that
# is worse by less than this share does not count as worse, even if the spread of its rounds is smaller.
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
    # None for a row that only explains others.
    target: float | None

    @property
    def name(self) -> str:
        """The key of the row in all runs."""
        return f"{self.benchmark}: {self.what} / {self.against}"

    @property
    def verdict(self) -> str:
        """Whether the target is met."""
        if self.target is None:
            return "-"
        return "met" if self.ratio <= self.target else "MISSED"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the three quartiles; of a single value, that value three times."""
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
    """Compare two series that were measured in turns, round by round.

    The ratio is the median of the rounds' ratios, not the ratio of the medians: other load of the machine in a round
    affects both series.
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
    """Return whether the ratio is worse by more than the upper half of the old and the lower of the new spread."""
    spread = (old.high - old.ratio) + (new.ratio - new.low)
    return new.ratio - old.ratio > max(spread, BETWEEN_PROCESSES * old.ratio)
