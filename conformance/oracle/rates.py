"""How often something fails: the interval that a number of failures in a number of runs allows for the rate."""

from __future__ import annotations

import math
from collections.abc import Callable

CONFIDENCE = 0.95

STEPS = 60
"""Halvings of an interval of length one: more than a float can show."""


def interval(failures: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of Clopper and Pearson for the rate of failure, two-sided.

    It is rather too wide than too narrow, also for few runs and for rates near 0 and 1: no failure in 100 runs allows a
    rate of up to 3.6 %.
    """
    if not 0 <= failures <= runs or runs < 1:
        raise ValueError(f"{failures} failures in {runs} runs is no count")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
    tail = (1 - confidence) / 2
    low = 0.0 if failures == 0 else _root(lambda rate: _at_least(failures, runs, rate) - tail)
    high = 1.0 if failures == runs else _root(lambda rate: tail - _at_most(failures, runs, rate))
    return low, high


def percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _at_most(hits: int, runs: int, rate: float) -> float:
    return math.fsum(_exactly(number, runs, rate) for number in range(hits + 1))


def _at_least(hits: int, runs: int, rate: float) -> float:
    return math.fsum(_exactly(number, runs, rate) for number in range(hits, runs + 1))


def _exactly(hits: int, runs: int, rate: float) -> float:
    if rate <= 0.0 or rate >= 1.0:
        return float(hits == (runs if rate >= 1.0 else 0))
    # By logarithms, since the factors of a thousand runs are no floats.
    choices = math.lgamma(runs + 1) - math.lgamma(hits + 1) - math.lgamma(runs - hits + 1)
    return math.exp(choices + hits * math.log(rate) + (runs - hits) * math.log1p(-rate))


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises from zero to one changes its sign."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
