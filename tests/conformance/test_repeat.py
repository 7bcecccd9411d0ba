"""Chance is measured: how often a cell fails, with the interval that so many runs allow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from conformance.cli.commands import main
from conformance.engine.conclusions import Conclusion, conclude_repeated
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.rates import interval
from conformance.oracle.repetition import Repetition
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import load_results

pytestmark = pytest.mark.contract("C7")

# Conclusions -----------------------------------------------------------------------------------------------------

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
        ([FAIL, FAIL], UNLISTED, "fail", ExpectationStatus.UNEXPECTED),
        ([PASS, FAIL], UNLISTED, "flake", ExpectationStatus.UNEXPECTED),
        ([PASS, FAIL], STRICT, "flake", ExpectationStatus.CHANGED_FAILURE),
        ([PASS, PASS], STRICT, "pass", ExpectationStatus.UNEXPECTED_PASS),
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
    assert (repetition.runs, repetition.failures) == (
        len(outcomes),
        sum(one not in (PASS, BROKEN) for one in outcomes),
    )


def test_errors_of_the_suite_are_no_failures_and_ways_are_counted() -> None:
    repetition = Repetition.of([PASS, BROKEN])
    assert (repetition.runs, repetition.failures, repetition.rate) == (2, 0, 0.0)
    assert Repetition.of([FAIL, BROKEN, FAIL]).rate == 1.0
    alone = Repetition.of([BROKEN, BROKEN])
    assert alone.interval == (0.0, 1.0)
    assert Repetition.from_json(json.loads(json.dumps(alone.as_json()))) == alone
    repetition = Repetition.of([PASS, FAIL, OTHER, PASS, FAIL, FAIL, PASS, PASS])
    assert repetition.words == "4 of 8 runs failed: 50.0 %, 95 % interval 15.7 % to 84.3 %"
    assert [(way.count, way.witness) for way in repetition.ways] == [(4, ""), (3, FAIL.reason), (1, OTHER.reason)]


# Whole runs ------------------------------------------------------------------------------------------------------

THIRD = "engine_fakes:FAILS_EVERY_THIRD_TIME/call/eager/cpu-1dev"


def test_runs_in_one_process_are_counted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here.parents[1]}{os.pathsep}{here}")
    monkeypatch.setenv("ENGINE_FAKES", str(tmp_path))
    where = ["-n", "1", "--results", str(tmp_path), "--expectations", os.devnull]
    # A run has two programs, and the process loses a callback of its third, sixth, ninth and twelfth one.
    assert main(["run", "--cell", THIRD, "--repeat", "7", *where]) == 1
    report = json.loads((tmp_path / "conformance-cpu.json").read_text())
    (found,) = report["cells"]
    assert report["process_starts"] == 1
    repeated = found["repeated"]
    assert (repeated["runs"], repeated["failures"], repeated["confidence"]) == (7, 4, 0.95)
    assert repeated["rate"] == pytest.approx(4 / 7)
    assert repeated["interval"] == pytest.approx(interval(4, 7))
    assert [(way["verdict"], way["anomaly"], way["count"]) for way in repeated["outcomes"]] == [
        ("fail", "lost", 4),
        ("pass", "", 3),
    ]
    assert "4 of 7 runs failed" in capsys.readouterr().out
    runs = load_results(tmp_path)
    assert "4 of 7 |" in markdown(runs)
    assert "4 of 7 runs failed" in html(runs)
    ends = [line for line in (tmp_path / "journal-cpu.jsonl").read_text().splitlines() if '"event": "end"' in line]
    assert len(ends) == 7
