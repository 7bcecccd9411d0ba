"""The rate of a failure has an exact interval."""

from __future__ import annotations

import math

import pytest

from conformance.oracle.rates import interval

pytestmark = pytest.mark.contract("C7")


@pytest.mark.parametrize(
    ("failed", "runs", "low", "high"),
    [
        # The table of Clopper and Pearson (1934), and what statistical packages print.
        (0, 10, 0.0, 0.3085),
        (5, 10, 0.1871, 0.8129),
        (1, 20, 0.0013, 0.2487),
        (13, 100, 0.0711, 0.2120),
    ],
)
def test_intervals_are_those_of_the_tables(failed: int, runs: int, low: float, high: float) -> None:
    assert interval(failed, runs, 0.95) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert interval(runs - failed, runs, 0.95) == (pytest.approx(1 - high, abs=1e-4), pytest.approx(1 - low, abs=1e-4))


@pytest.mark.parametrize("failed", range(0, 11))
def test_an_interval_covers_the_true_rate_as_often_as_it_says(failed: int) -> None:
    rate, runs = failed / 10, 12
    intervals = [interval(hits, runs, 0.9) for hits in range(runs + 1)]
    covered = sum(
        math.comb(runs, hits) * rate**hits * (1 - rate) ** (runs - hits)
        for hits, (low, high) in enumerate(intervals)
        if low <= rate + 1e-12 and rate - 1e-12 <= high
    )
    assert covered >= 0.9


@pytest.mark.parametrize(("failed", "runs", "confidence"), [(1, 0, 0.9), (0, 0, 0.9), (-1, 3, 0.9), (1, 3, 1.0)])
def test_what_is_no_rate_is_refused(failed: int, runs: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"is no count|a confidence is between 0 and 1"):
        interval(failed, runs, confidence)
