"""Rates have exact intervals, and releases differ only if chance does not explain it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bisecting.statistics import chance_of_difference, rate_of
from conformance.oracle.rates import interval

pytestmark = pytest.mark.contract("C9")

COUNTS = st.dictionaries(st.sampled_from(["pass", "fail", "hang"]), st.integers(1, 40), min_size=1)


@pytest.mark.parametrize(
    ("failed", "runs", "low", "high"),
    [
        # The table of Clopper and Pearson (1934), and what statistical packages print.
        (0, 10, 0.0, 0.3085),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (1, 20, 0.0013, 0.2487),
        (13, 100, 0.0711, 0.2120),
    ],
)
def test_intervals_are_those_of_the_tables(failed: int, runs: int, low: float, high: float) -> None:
    assert interval(failed, runs, 0.95) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.integers(0, 300), st.integers(1, 300), st.floats(0.5, 0.999))
def test_an_interval_holds_what_was_seen(failed: int, runs: int, confidence: float) -> None:
    failed = min(failed, runs)
    found = rate_of(failed, runs, confidence)
    assert 0 <= found.low <= failed / runs <= found.high <= 1
    wider = rate_of(failed, runs, (1 + confidence) / 2)
    assert wider.low <= found.low + 1e-9
    assert found.high <= wider.high + 1e-9
    mirrored = rate_of(runs - failed, runs, confidence)
    assert mirrored.low == pytest.approx(1 - found.high, abs=1e-9)


@pytest.mark.parametrize("failed", range(0, 11))
def test_an_interval_covers_the_true_rate_as_often_as_it_says(failed: int) -> None:
    rate, runs = failed / 10, 12
    covered = sum(
        math.comb(runs, hits) * rate**hits * (1 - rate) ** (runs - hits)
        for hits in range(runs + 1)
        if rate_of(hits, runs, 0.9).low <= rate + 1e-12 and rate - 1e-12 <= rate_of(hits, runs, 0.9).high
    )
    assert covered >= 0.9


@pytest.mark.parametrize(("failed", "runs", "confidence"), [(1, 0, 0.9), (0, 0, 0.9), (-1, 3, 0.9), (1, 3, 1.0)])
def test_what_is_no_rate_is_refused(failed: int, runs: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"is no count|a confidence is between 0 and 1"):
        interval(failed, runs, confidence)


@pytest.mark.parametrize(
    ("one", "other", "chance"),
    [
        # Fisher's tea, and two tables of textbooks.
        ({"pass": 3, "fail": 1}, {"pass": 1, "fail": 3}, 0.4857),
        ({"pass": 1, "fail": 9}, {"pass": 11, "fail": 3}, 0.002759),
        ({"pass": 5}, {"fail": 5}, 0.007937),
        ({"pass": 5}, {"pass": 500}, 1.0),
        # Neither fails more often; they fail in another way.
        ({"fail": 10, "pass": 10}, {"hang": 10, "pass": 10}, 3 * 0.000436),
    ],
)
def test_differences_by_chance_are_those_of_fishers_test(
    one: dict[str, int], other: dict[str, int], chance: float
) -> None:
    assert chance_of_difference(one, other) == pytest.approx(chance, rel=0.01)


@given(COUNTS, COUNTS)
def test_a_difference_has_no_direction(one: dict[str, int], other: dict[str, int]) -> None:
    found = chance_of_difference(one, other)
    assert 0 < found <= 1
    assert found == pytest.approx(chance_of_difference(other, one))
    assert chance_of_difference(one, one) == pytest.approx(1.0)
