"""How far numbers of runs can be trusted: the interval of a rate, and whether releases differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

STEPS = 60
"""Halvings of an interval of length one: more than a float can show."""


@dataclass(frozen=True)
class Rate:
    """How many of some runs failed, and the interval that holds the true rate with the given confidence."""

    failed: int
    runs: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs} fail (rate {self.low:.3f} to {self.high:.3f})"


def rate_of(failed: int, runs: int, confidence: float) -> Rate:
    """The exact interval of Clopper and Pearson. It is rather too wide than too narrow, also for few runs."""
    if not 0 <= failed <= runs or not 0 < confidence < 1:
        raise ValueError(f"{failed} of {runs} with confidence {confidence} is no rate")
    tail = (1 - confidence) / 2
    low = 0.0 if failed == 0 else _root(lambda p: _at_least(failed, runs, p) - tail)
    high = 1.0 if failed == runs else _root(lambda p: tail - _at_most(failed, runs, p))
    return Rate(failed, runs, low, high)


def chance_of_difference(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The probability that two releases with equal rates show counts of outcomes that differ by this much or more.

    Each kind of outcome is tested against all others together, by Fisher's exact test. The smallest probability counts,
    times the number of tests.
    """
    kinds = sorted({*one, *other})
    runs, other_runs = sum(one.values()), sum(other.values())
    if len(kinds) < 2:
        return 1.0
    smallest = min(_fisher(one.get(kind, 0), runs, other.get(kind, 0), other_runs) for kind in kinds)
    # Of two kinds, one count decides the other: that is one test.
    return min(1.0, smallest * (len(kinds) - 1))


def _fisher(hits: int, runs: int, other_hits: int, other_runs: int) -> float:
    """Two-sided: all tables with the same sums that are no more probable than this one."""
    total = hits + other_hits

    def weight(number: int) -> int:
        return math.comb(runs, number) * math.comb(other_runs, total - number)

    possible = range(max(0, total - other_runs), min(runs, total) + 1)
    found = weight(hits)
    return sum(each for number in possible if (each := weight(number)) <= found) / math.comb(runs + other_runs, total)


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
