"""Whether a series grows: the slope of Theil and Sen, with Sen's interval, over samples after the warm-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8
"""With fewer samples nothing is said: the interval would have no end."""

WARM_UP = 1 / 3
"""The part of the samples at the begin that does not count: caches fill, and threads start."""

CONFIDENCE = 0.999
"""A run tests several series."""


@dataclass(frozen=True)
class Slope:
    slope: float
    low: float
    high: float
    samples: int

    def grows(self, allowed: float) -> bool:
        """Whether even the lowest slope that the samples allow is more than is allowed."""
        return self.low > allowed


def slope_of(places: Sequence[float], values: Sequence[float], first: float = 0.0) -> Slope | None:
    """The slope of values over their places, from the `first` place on; None if there are too few."""
    # It takes a second to import, and the other commands do not need it.
    from scipy.stats import theilslopes

    start = max(math.ceil(len(values) * WARM_UP), sum(place < first for place in places))
    places, values = places[start:], values[start:]
    if len(values) < LEAST_SAMPLES or len(set(places)) < 2:
        return None
    found = theilslopes(values, places, alpha=CONFIDENCE)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope), len(values))
