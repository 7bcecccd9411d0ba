"""Known failures are exact and strict in both directions, and `expect` prints what a run has found as entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes

from conformance.cli.commands import main
from conformance.cli.expect import entries
from conformance.engine.preparation import IMPLEMENTATIONS
from conformance.expectations.entries import (
    EXPECTATIONS,
    Expectation,
    ExpectationError,
    Expectations,
    load_expectations,
    read_entries,
)
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.planning.cells import Plan
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.reports.results import load_results
from conformance.spec.depths import Depth
from conformance.spec.versions import version_matches

pytestmark = pytest.mark.contract("C7")

ENTRY = """
[[expect]]
cells = "hostcb/call/*.pmap/cpu-8dev"
verdict = "crash(SIGABRT)"
stage = "callback"
reason = "planted"
link = "https://example.org/1"
since = "2026-01-01"
jax = ">=0.10,<0.12"
"""

LISTED = "hostcb/call/scan.pmap/cpu-8dev"
PASS = Outcome(Verdict.PASS)
CRASH = Outcome(Verdict.CRASH, Stage.CALLBACK, signal="SIGABRT")
OTHERS = (
    Outcome(Verdict.CRASH, Stage.CALLBACK, signal="SIGSEGV"),
    Outcome(Verdict.CRASH, Stage.EXIT, signal="SIGABRT"),
    Outcome(Verdict.FAIL, Stage.CALLBACK),
    Outcome(Verdict.HANG),
    Outcome(Verdict.HARNESS_ERROR),
)


def load(folder: Path, text: str) -> Expectations:
    path = folder / "cpu.toml"
    path.write_text(text)
    return load_expectations(path)


@pytest.fixture
def expectations(tmp_path: Path) -> Expectations:
    return load(tmp_path, ENTRY)


@pytest.mark.parametrize(
    ("intermittent", "passed"),
    [("", ExpectationStatus.UNEXPECTED_PASS), ("intermittent = true\n", ExpectationStatus.AS_EXPECTED)],
)
def test_a_listed_cell_fails_in_exactly_one_way(tmp_path: Path, intermittent: str, passed: ExpectationStatus) -> None:
    expectations = load(tmp_path, ENTRY + intermittent)
    assert expectations.status(LISTED, CRASH) is ExpectationStatus.KNOWN_FAILURE
    assert expectations.status(LISTED, PASS) is passed
    for outcome in OTHERS:
        assert expectations.status(LISTED, outcome) is ExpectationStatus.CHANGED_FAILURE
    assert expectations.applicable("0.10.2").of(LISTED)
    assert not expectations.applicable("0.12.0.1").of(LISTED)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('link = "https://example.org/1"', "", "'link' is missing"),
        ('stage = "callback"', 'stage = "later"', "no stage"),
        ('"crash(SIGABRT)"', '"sometimes"', "no verdict"),
        ('reason = "planted"', 'reason = "planted"\nblame = "me"', "unknown key 'blame'"),
        ('reason = "planted"', 'reason = "planted"\nintermittent = "often"', "'intermittent' is true or false"),
        ('jax = ">=0.10,<0.12"', 'jax = "0.12"', "entry 1: 'jax': '0.12' is no version comparison"),
        ("[[expect]]", "[[expect]", "not TOML"),
        ("[[expect]]", "[[expct]]", "unknown key 'expct'"),
        ("[[expect]]", "[expect]", "'expect' is no list of tables"),
        ('"hostcb/call/*.pmap/cpu-8dev"', "['a', 3]", "'cells' is the id of a cell"),
        ('"hostcb/call/*.pmap/cpu-8dev"', "[]", "'cells' is the id of a cell"),
        ('"crash(SIGABRT)"', "7", "'verdict' is a text in quotes"),
    ],
)
def test_malformed_files_say_why(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ExpectationError, match=message):
        load(tmp_path, ENTRY.replace(old, new))


def test_versions_are_compared_as_numbers() -> None:
    matching = {">=0.10.2": "0.10.2", ">=0.10,<0.12.1": "0.12.0.1", "<0.10": "0.9", "==0.10": "0.10.0", "": "0.10.2"}
    assert all(version_matches(version, specifier) for specifier, version in matching.items())
    assert not version_matches("0.10.2", ">0.10.2")
    assert not version_matches("0.10.0", "<=0.9")


def test_files_of_the_project_match_their_plans(cpu_plan: Plan) -> None:
    plan = cpu_plan.with_(plan_over_processes(IMPLEMENTATIONS, [USUAL]))
    cells = [cell.id for cell in plan.cells]
    expectations = load_expectations(EXPECTATIONS / "cpu.toml")
    assert expectations.unmatched(cells) == ()
    gone = Expectation(("hostcb/gone/*", cells[0]), "fail", "", "", "")
    assert Expectations((gone,)).unmatched(cells) == ("hostcb/gone/*",)


@pytest.mark.contract("C30")
def test_an_expectation_is_about_what_runs_unless_it_names_a_depth() -> None:
    entry = Expectation(("hostcb/call/*/tpu-*", "hostcb/call/*/tpu-*@lower"), "fail", "", "", "")
    running = replace(entry, cells=("hostcb/call/*/tpu-*",))
    assert entry.at(Depth.RUN) == running
    assert entry.at(Depth.LOWER) == replace(entry, cells=("hostcb/call/*/tpu-*@lower",))
    assert entry.at(Depth.COMPILE) is None
    found = Expectations((running,))
    assert found.status("hostcb/call/jit/tpu-1dev@lower", PASS) is ExpectationStatus.AS_EXPECTED
    assert found.status("hostcb/call/jit/tpu-1dev", Outcome(Verdict.FAIL)) is ExpectationStatus.KNOWN_FAILURE


def test_a_wrapped_implementation_has_the_known_failures_of_its_base(expectations: Expectations) -> None:
    cells = [LISTED.replace("hostcb", "mine:WRAPPED"), LISTED.replace("hostcb", "other")]
    (entry,) = expectations.of_wrapped({"mine:WRAPPED": "hostcb", "third": "jax"}, cells)
    assert entry.cells == ("mine:WRAPPED/call/*.pmap/cpu-8dev",)
    for each in (entry, replace(entry, reason='"quoted" \\ \U0001f600\n\x7f', intermittent=True)):
        assert read_entries(each.as_toml(), "copied") == (each,)
    wrapped = Expectations((*expectations.entries, entry))
    assert wrapped.status(cells[0], CRASH) is ExpectationStatus.KNOWN_FAILURE
    assert wrapped.status(cells[1], CRASH) is ExpectationStatus.UNEXPECTED
    # A glob that matches no cell of it would count as stale.
    assert expectations.of_wrapped({"other": "hostcb"}, cells[:1]) == ()


# The command `expect`.


def cell(cell_id: str, verdict: str, status: str, stage: str | None = None, **fields: Any) -> dict[str, Any]:
    own = {"verdict": verdict, "status": status, "stage": stage, "witness": "lost: cpu:0 never ran #1\nmore"}
    return fakes.cell(cell_id, **own | fields)


def fails(cell_id: str, status: str = "unexpected", **fields: Any) -> dict[str, Any]:
    return cell(cell_id, "fail", status, "callback", **fields)


def printed(folder: Path, *cells: dict[str, Any], stale: tuple[str, ...] = ()) -> str:
    fakes.write(folder, *cells, run_info={"cpu-1dev": {"jax": "0.12.0"}}, stale_expectations=stale)
    (record,) = load_results(folder)
    return "\n".join(entries(record, "2026-02-02", whole=True))


def test_failures_that_are_alike_become_one_entry(tmp_path: Path) -> None:
    text = printed(
        tmp_path,
        fails("hostcb/id_tap/scan/cpu-1dev"),
        fails("hostcb/id_tap/scan/cpu-8dev"),
        fails("hostcb/id_tap/vmap/cpu-8dev"),
        cell("hostcb/id_tap/vmap/cpu-1dev", "pass", "as_expected"),
        cell("hostcb/call/vmap/cpu-8dev", "crash(SIGABRT)", "unexpected"),
        fails("hostcb/call/scan/cpu-1dev", "known_failure", expected="fail"),
    )
    lost, crashed = read_entries(text, "printed")
    assert lost.cells == ("hostcb/id_tap/scan/cpu-*", "hostcb/id_tap/vmap/cpu-8dev")
    assert (lost.verdict, lost.stage, lost.jax, lost.since) == ("fail", Stage.CALLBACK, ">=0.12.0", "2026-02-02")
    assert (crashed.cells, crashed.verdict) == (("hostcb/call/vmap/cpu-8dev",), "crash(SIGABRT)")


def test_what_a_person_has_to_change_is_a_comment(tmp_path: Path) -> None:
    """Neither a witness nor an id of a cell can spoil the file."""
    evil = '\x00\x1b[31m """ \x7f \U0001f600 [[expect]]\n'
    text = printed(
        tmp_path,
        cell("hostcb/call/scan/cpu-1dev", "pass", "unexpected_pass", expected="fail"),
        fails("hostcb/call/vmap/cpu-1dev", "changed_failure", expected="hang"),
        cell("hostcb/call/cond/cpu-1dev", "flake", "unexpected"),
        fails(f"hostcb/{evil}/scan/cpu-1dev", witness=evil),
        stale=("gone/*",),
    )
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    named = ("'gone/*'", "hostcb/call/scan/cpu-1dev", "hostcb/call/vmap/cpu-1dev", "hostcb/call/cond/cpu-1dev")
    assert all(name in comment for name, comment in zip(named, comments, strict=False)), comments
    found = {cell for entry in read_entries(text, "printed") for cell in entry.cells}
    assert found == {"hostcb/call/vmap/cpu-1dev", f"hostcb/{evil}/scan/cpu-1dev"}


def test_the_command_from_a_run_to_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run refuses the entry until somebody has written why; then everything is expected, and the reason is shown."""
    known = "jax/io_callback/grad.scan.detached/cpu-1dev"
    expectations = tmp_path / "cpu.toml"
    expectations.touch()
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--expectations", str(expectations), "--cell", known]
    assert main(arguments) == 1
    ((found,),) = (run.cells for run in load_results(tmp_path))
    assert (found.id, found.verdict, found.stage, found.anomaly) == (known, "fail", "callback", "lost")
    assert found.history
    capsys.readouterr()
    assert main(["expect", str(tmp_path)]) == 0
    entry = capsys.readouterr().out
    expectations.write_text(entry)
    with pytest.raises(ExpectationError, match="'reason'"):
        load_expectations(expectations)
    expectations.write_text(entry.replace('reason = ""', 'reason = "dropped"').replace('link = ""', 'link = "none"'))
    assert main(arguments) == 0
    # As it is the only cell, the terminal shows the reason.
    assert "dropped" in capsys.readouterr().out
    assert fakes.Page((tmp_path / "index.html").read_text()).data["known"][0]["reason"] == "dropped"
    assert main(["expect", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
