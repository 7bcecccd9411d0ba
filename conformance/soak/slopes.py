"""Whether a series grows: the slope of Theil and Sen, with Sen's interval, over samples after the warm-up.

The median of all slopes between two samples does not mind a few samples that are far off. Its interval comes from
Kendall's statistic, and needs no assumption about how the samples scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8
"""With fewer samples nothing is said: the interval would have no end."""

WARM_UP = 1 / 3
"""The part of the samples at the begin that does not count: caches fill, and threads start."""

CONFIDENCE = 3.29
"""The quantile of the normal distribution for an interval of 99.9 %: a run tests several series."""


@dataclass(frozen=True)
class Slope:
    slope: float
    low: float
    high: float
    samples: int

    def grows(self, allowed: float) -> bool:
        """Whether even the lowest slope of the interval is more than what is allowed."""
        return self.low > allowed


def slope_of(places: Sequence[float], values: Sequence[float], first: float = 0.0) -> Slope | None:
    """The slope of values over places, or None if the samples are too few; those before `first` do not count."""
    skipped = max(math.ceil(len(places) * WARM_UP), sum(place < first for place in places))
    places, values = places[skipped:], values[skipped:]
    count = len(places)
    if count < LEAST_SAMPLES:
        return None
    slopes = sorted(
        (values[later] - values[earlier]) / (places[later] - places[earlier])
        for earlier in range(count)
        for later in range(earlier + 1, count)
        if places[later] > places[earlier]
    )
    if not slopes:
        return None
    reach = CONFIDENCE * math.sqrt(_variance(values))
    lowest = math.floor((len(slopes) - reach) / 2)
    highest = math.ceil((len(slopes) + reach) / 2) - 1
    return Slope(
        statistics.median(slopes),
        slopes[lowest] if lowest >= 0 else -math.inf,
        slopes[highest] if highest < len(slopes) else math.inf,
        count,
    )


def _variance(values: Sequence[float]) -> float:
    """The variance of Kendall's statistic, with its correction for equal values."""
    count = len(values)
    ties = [values.count(value) for value in set(values)]
    corrections = sum(tie * (tie - 1) * (2 * tie + 5) for tie in ties)
    return (count * (count - 1) * (2 * count + 5) - corrections) / 18
