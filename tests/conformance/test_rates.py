"""Rates of failure: intervals and differences are those of the tables."""

from __future__ import annotations

import pytest

from conformance.oracle.rates import chance_of_difference, interval

pytestmark = pytest.mark.contract("C7")


@pytest.mark.parametrize(
    ("failed", "runs", "low", "high"),
    # The table of Clopper and Pearson (1934), and what statistical packages print.
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (1, 20, 0.0013, 0.2487), (13, 100, 0.0711, 0.2120)],
)
def test_the_interval_of_a_rate(failed: int, runs: int, low: float, high: float) -> None:
    assert interval(failed, runs, 0.95) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert interval(runs - failed, runs, 0.95) == (pytest.approx(1 - high, abs=1e-4), pytest.approx(1 - low, abs=1e-4))


@pytest.mark.parametrize(
    ("one", "other", "chance"),
    [
        # Fisher's tea, and a table of textbooks.
        ({"pass": 3, "fail": 1}, {"pass": 1, "fail": 3}, 0.4857),
        ({"pass": 1, "fail": 9}, {"pass": 11, "fail": 3}, 0.002759),
        ({"pass": 5}, {"pass": 500}, 1.0),
        # Neither fails more often; they fail in another way.
        ({"fail": 10, "pass": 10}, {"hang": 10, "pass": 10}, 3 * 0.000436),
    ],
)
def test_the_chance_of_a_difference(one: dict[str, int], other: dict[str, int], chance: float) -> None:
    assert chance_of_difference(one, other) == pytest.approx(chance, rel=0.01)
