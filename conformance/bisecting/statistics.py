"""How far numbers of runs can be trusted: the interval of a rate, and whether releases differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..oracle.rates import interval


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
    return Rate(failed, runs, *interval(failed, runs, confidence))


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
    return min(1.0, smallest * (len(kinds) if len(kinds) > 2 else 1))


def _fisher(hits: int, runs: int, other_hits: int, other_runs: int) -> float:
    """Two-sided: all tables with the same sums that are no more probable than this one."""
    total = hits + other_hits

    def weight(number: int) -> int:
        return math.comb(runs, number) * math.comb(other_runs, total - number)

    possible = range(max(0, total - other_runs), min(runs, total) + 1)
    found = weight(hits)
    return sum(each for number in possible if (each := weight(number)) <= found) / math.comb(runs + other_runs, total)
