"""Chance is measured: how often a cell fails, with the interval that so many runs allow, and under load."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from results_fakes import LOST, write

from conformance.cli.commands import main
from conformance.engine.conclusions import Conclusion, conclude_repeated
from conformance.engine.options import RunOptions
from conformance.engine.run import Run
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.rates import interval
from conformance.oracle.repetition import Repetition
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.planning.cells import Plan, parse_cell
from conformance.reports.html import html
from conformance.reports.markdown import markdown
from conformance.reports.results import load_results
from conformance.worker.stress import stress

pytestmark = pytest.mark.contract("C7")

DEADLINE = 60.0

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
    ("outcomes", "expectations", "verdict", "standing"),
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
    outcomes: list[Outcome], expectations: Expectations, verdict: str, standing: ExpectationStatus
) -> None:
    """A flake is a failure, unless the expectation says that the cell fails by chance."""
    conclusion = conclude_repeated(CELL, outcomes, expectations)
    assert conclusion.outcome.label == verdict
    assert expectations.standing(CELL, conclusion.outcome) is standing
    assert conclusion.outcome.seconds == pytest.approx(sum(outcome.seconds for outcome in outcomes))
    assert Conclusion.from_json(json.loads(json.dumps(conclusion.as_json()))) == conclusion
    repetition = conclusion.repetition
    assert repetition is not None
    assert (repetition.runs, repetition.failures) == (
        len(outcomes),
        sum(one not in (PASS, BROKEN) for one in outcomes),
    )


def test_errors_of_the_suite_are_no_failures() -> None:
    repetition = Repetition.of([PASS, BROKEN])
    assert (repetition.runs, repetition.failures, repetition.rate) == (2, 0, 0.0)
    assert repetition.words == (
        "0 of 1 runs failed: 0.0 %, 95 % interval 0.0 % to 97.5 %; 1 of 2 runs ended with an error of the suite"
    )
    assert Repetition.of([FAIL, BROKEN, FAIL]).rate == 1.0
    alone = Repetition.of([BROKEN, BROKEN])
    assert alone.words == "2 of 2 runs ended with an error of the suite"
    assert alone.interval == (0.0, 1.0)
    assert Repetition.from_json(json.loads(json.dumps(alone.as_json()))) == alone


def test_an_interrupted_run_counts_the_runs_that_ended(tmp_path: Path) -> None:
    plan = Plan((parse_cell(CELL),), ())
    run = Run(plan, plan, UNLISTED, RunOptions(results=tmp_path, depth="run", repeat=100), "0.12.0")
    lines = [{"event": "end", "cell": CELL, "outcome": one.as_json()} for one in (PASS, PASS, FAIL)]
    lines.append({"event": "begin", "cell": CELL})
    (tmp_path / "journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    repetition = run._in_journal(tmp_path / "journal")[CELL].repetition
    assert repetition is not None
    assert (repetition.runs, repetition.failures) == (3, 1)


# Whole runs ------------------------------------------------------------------------------------------------------

THIRD = "engine_fakes:FAILS_EVERY_THIRD_TIME/call/eager/cpu-1dev"
DIES = "implementation_fakes:DIES_IN_CALL/call/eager/cpu-1dev"
ENTRY = f"""
[[expect]]
cells = "{THIRD}"
verdict = "fail"
stage = "callback"
reason = "planted"
link = "none"
since = "2026-01-01"
intermittent = true
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here.parents[1]}{os.pathsep}{here}")
    monkeypatch.setenv("ENGINE_FAKES", str(tmp_path))
    nothing_known = tmp_path / "none.toml"
    nothing_known.touch()

    def run_cell(cell_id: str, *options: str, known: Path = nothing_known) -> tuple[int, dict[str, Any]]:
        arguments = ["run", "-n", "1", "--results", str(tmp_path), "--expectations", str(known), "--cell", cell_id]
        code = main([*arguments, *options])
        report: dict[str, Any] = json.loads((tmp_path / "conformance-cpu.json").read_text())
        return code, report

    return run_cell


def test_runs_in_one_process_are_counted_and_reported(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A run has two programs, and the process loses a callback of its third, sixth, ninth and twelfth one.
    code, report = run(THIRD, "--repeat", "7")
    (found,) = report["cells"]
    assert code == 1
    assert report["process_starts"] == 1
    repeated = found["repeated"]
    assert (repeated["runs"], repeated["failures"], repeated["confidence"]) == (7, 4, 0.95)
    assert repeated["rate"] == pytest.approx(4 / 7)
    assert repeated["interval"] == pytest.approx(interval(4, 7))
    assert [(way["verdict"], way["anomaly"], way["count"]) for way in repeated["outcomes"]] == [
        ("fail", "lost", 4),
        ("pass", "", 3),
    ]
    assert found["reproduce"] == f"python -m conformance run --repeat 7 --cell {THIRD}"
    words = "4 of 7 runs failed"
    assert words in capsys.readouterr().out
    runs = load_results(tmp_path)
    assert "## Repeated runs" in markdown(runs)
    assert words.replace(" runs failed", " |") in markdown(runs)
    assert words in html(runs)
    ends = [line for line in (tmp_path / "journal-cpu.jsonl").read_text().splitlines() if '"event": "end"' in line]
    assert len(ends) == 7


def test_a_failure_by_chance_that_is_expected_fails_no_run(run: Any, tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    known.write_text(ENTRY)
    code, report = run(THIRD, "--repeat", "3", "--stress", known=known)
    (found,) = report["cells"]
    assert (found["verdict"], found["standing"], found["repeated"]["failures"]) == ("fail", "known_failure", 2)
    # The file has no entry for any other cell of a plan that this implementation has.
    assert code == 0, report["problems"]
    assert report["stress"] is True
    assert found["reproduce"].startswith("python -m conformance run --repeat 3 --stress --cell ")
    assert "on a machine under load" in markdown(load_results(tmp_path))


def test_a_crash_costs_one_run(run: Any) -> None:
    code, report = run(DIES, "--repeat", "2")
    (found,) = report["cells"]
    assert (code, found["verdict"], report["process_starts"]) == (1, "crash(SIGABRT)", 2)
    assert [(way["verdict"], way["count"]) for way in found["repeated"]["outcomes"]] == [("crash(SIGABRT)", 2)]


# Reports ---------------------------------------------------------------------------------------------------------


def repeated(failures: int, runs: int) -> dict[str, Any]:
    return Repetition.of([FAIL] * failures + [PASS] * (runs - failures)).as_json()


def test_a_rate_that_changed_is_a_change_and_chance_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flake = LOST | {"verdict": "flake"}
    write(tmp_path / "before", flake | {"repeated": repeated(3, 100)})
    for failures, code in ((6, 0), (60, 1)):
        write(tmp_path / "after", flake | {"repeated": repeated(failures, 100)})
        assert main(["diff", str(tmp_path / "before"), str(tmp_path / "after")]) == code
    assert "(lost), 3 of 100 runs failed: 3.0 %, 95 % interval 0.6 % to 8.5 % -> flake" in capsys.readouterr().out


def test_the_rate_of_an_intermittent_failure_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"reason": "A race.", "link": "none", "intermittent": True}
    race = LOST | {"standing": "known_failure", "expected": "fail", "known": known}
    for name, failures in (("before", 3), ("after", 60)):
        write(tmp_path / name, race | {"repeated": repeated(failures, 100)})
    assert main(["diff", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    assert capsys.readouterr().out.startswith("INTERMITTENT: ")


# Load ------------------------------------------------------------------------------------------------------------


def ended(descriptor: int, timeout: float = DEADLINE) -> bool:
    """Whether the process of this descriptor ends in time."""
    return bool(select.select([descriptor], [], [], timeout)[0])


def test_load_ends_with_its_block() -> None:
    with stress(2) as processes:
        descriptors = [os.pidfd_open(process) for process in processes]
        assert len(set(processes)) == 2
        assert not any(ended(descriptor, 0) for descriptor in descriptors)
    assert all(ended(descriptor, 0) for descriptor in descriptors)


def test_load_ends_with_a_killed_run() -> None:
    source = (
        "import sys; from conformance.worker.stress import stress\n"
        "with stress(2) as processes: print(*processes, flush=True); sys.stdin.read()"
    )
    root = str(Path(__file__).parents[2])
    holding = subprocess.Popen(
        [sys.executable, "-c", source], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holding.stdout is not None
    descriptors = [os.pidfd_open(int(process)) for process in holding.stdout.readline().split()]
    assert len(descriptors) == 2
    holding.send_signal(signal.SIGKILL)
    holding.communicate(timeout=DEADLINE)
    assert all(ended(descriptor) for descriptor in descriptors)
