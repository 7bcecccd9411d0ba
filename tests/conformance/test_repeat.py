"""Chance is measured: how often a cell fails, with the interval that so many runs allow."""

from __future__ import annotations

import json

import pytest

from conformance.engine.conclusions import Conclusion, conclude_repeated
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.rates import chance_of_difference, interval
from conformance.oracle.repetition import Repetition
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C7")

CELL = "jax/pure_callback/jit/cpu-1dev"
PASS = Outcome(Verdict.PASS, seconds=0.25)
FAIL = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: cpu:0 never ran #1", 0.5, anomaly="lost")
OTHER = Outcome(Verdict.FAIL, Stage.CALLBACK, "order: cpu:0 ran #2 before #1", 0.5, anomaly="order")
HANG = Outcome(Verdict.HANG, reason="no answer")
BROKEN = Outcome(Verdict.HARNESS_ERROR, reason="Traceback")


def listed(intermittent: bool) -> Expectations:
    entry = Expectation((CELL,), "fail", "planted", "none", "2026-01-01", Stage.CALLBACK, intermittent=intermittent)
    return Expectations((entry,))


UNLISTED, STRICT, BY_CHANCE = Expectations(), listed(False), listed(True)


@pytest.mark.parametrize(
    ("outcomes", "expectations", "verdict", "status"),
    [
        ([PASS, PASS], UNLISTED, "pass", ExpectationStatus.AS_EXPECTED),
        ([PASS, FAIL], UNLISTED, "flake", ExpectationStatus.UNEXPECTED),
        ([PASS, FAIL], STRICT, "flake", ExpectationStatus.CHANGED_FAILURE),
        ([FAIL, OTHER], STRICT, "fail", ExpectationStatus.KNOWN_FAILURE),
        ([PASS, FAIL], BY_CHANCE, "fail", ExpectationStatus.KNOWN_FAILURE),
        ([PASS, PASS], BY_CHANCE, "pass", ExpectationStatus.AS_EXPECTED),
        ([PASS, FAIL, HANG], BY_CHANCE, "hang", ExpectationStatus.CHANGED_FAILURE),
        ([FAIL, HANG], UNLISTED, "fail", ExpectationStatus.UNEXPECTED),
        ([PASS, BROKEN], UNLISTED, "harness_error", ExpectationStatus.UNEXPECTED),
    ],
)
def test_conclusion_from_several_runs(
    outcomes: list[Outcome], expectations: Expectations, verdict: str, status: ExpectationStatus
) -> None:
    """A flake is a failure, unless the expectation says that the cell fails by chance."""
    conclusion = conclude_repeated(CELL, outcomes, expectations)
    assert conclusion.outcome.label == verdict
    assert expectations.status(CELL, conclusion.outcome) is status
    assert conclusion.outcome.seconds == pytest.approx(sum(outcome.seconds for outcome in outcomes))
    assert Conclusion.from_json(json.loads(json.dumps(conclusion.as_json()))) == conclusion
    repetition = conclusion.repetition
    assert repetition is not None
    assert repetition.runs == len(outcomes)
    assert repetition.failures == sum(one not in (PASS, BROKEN) for one in outcomes)


def test_errors_of_the_suite_are_no_failures_and_ways_are_counted() -> None:
    assert Repetition.of([FAIL, BROKEN, FAIL]).rate == 1.0
    assert Repetition.of([BROKEN, BROKEN]).interval == (0.0, 1.0)
    repetition = Repetition.of([PASS, FAIL, OTHER, PASS, FAIL, FAIL, PASS, PASS])
    assert repetition.words == "4 of 8 runs failed: 50.0 %, 95 % interval 15.7 % to 84.3 %"
    assert [(way.count, way.witness) for way in repetition.ways] == [(4, ""), (3, FAIL.reason), (1, OTHER.reason)]


def test_intervals_and_the_chance_of_a_difference() -> None:
    """The table of Clopper and Pearson (1934), Fisher's tea, and a table of textbooks."""
    for failed, runs, low, high in ((0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (13, 100, 0.0711, 0.2120)):
        assert interval(failed, runs, 0.95) == pytest.approx((low, high), abs=1e-4)
        assert interval(runs - failed, runs, 0.95) == pytest.approx((1 - high, 1 - low), abs=1e-4)
    for one, other, chance in (
        ({"pass": 3, "fail": 1}, {"pass": 1, "fail": 3}, 0.4857),
        ({"pass": 1, "fail": 9}, {"pass": 11, "fail": 3}, 0.002759),
        ({"pass": 5}, {"pass": 500}, 1.0),
        # Neither fails more often; they fail in another way.
        ({"fail": 10, "pass": 10}, {"hang": 10, "pass": 10}, 3 * 0.000436),
    ):
        assert chance_of_difference(one, other) == pytest.approx(chance, rel=0.01)
