"""How often something fails: the interval that a number of failures in a number of runs allows for the rate."""

from __future__ import annotations

import math
from statistics import NormalDist

CONFIDENCE = 0.95


def interval(failures: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval for the rate of failure, two-sided.

    Unlike the interval around the observed rate, it is right for few runs, and for rates near 0 and 1: no failure in
    100 runs allows a rate of up to 3.7 %.
    """
    if not 0 <= failures <= runs or runs < 1:
        raise ValueError(f"{failures} failures in {runs} runs is no count")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = failures / runs
    centre = rate + z**2 / (2 * runs)
    reach = z * math.sqrt(rate * (1 - rate) / runs + z**2 / (4 * runs**2))
    scale = 1 + z**2 / runs
    # Rounding must not turn an exact end into one beside it.
    low = 0.0 if failures == 0 else (centre - reach) / scale
    high = 1.0 if failures == runs else (centre + reach) / scale
    return low, high


def percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
