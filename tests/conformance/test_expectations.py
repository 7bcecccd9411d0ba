"""Known failures are exact and strict in both directions, and `expect` prints what a run has found as entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes
from suite_runs import Capture, Patch

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
from conformance.planning.cells import Plan, parse_cell
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.reports.report import Report
from conformance.reports.results import record_of
from conformance.spec.depths import Depth
from conformance.spec.versions import version_matches

pytestmark = pytest.mark.contract("C7")

ENTRY = fakes.ENTRY.format("hostcb/call/*.pmap/cpu-8dev").replace('"fail"', '"crash(SIGABRT)"')
ENTRY = f'{ENTRY.replace("It is planted.", "planted")}jax = ">=0.10,<0.12"\n'

LISTED = "hostcb/call/scan.pmap/cpu-8dev"
PASS = Outcome(Verdict.PASS)
CRASH = Outcome(Verdict.CRASH, Stage.CALLBACK, signal="SIGABRT")
OTHERS = (
    *(replace(CRASH, signal="SIGSEGV"), replace(CRASH, stage=Stage.EXIT), Outcome(Verdict.FAIL, Stage.CALLBACK)),
    *(Outcome(Verdict.HANG), Outcome(Verdict.HARNESS_ERROR)),
)


def load(folder: Path, text: str) -> Expectations:
    path = folder / "cpu.toml"
    path.write_text(text)
    return load_expectations(path)


def test_a_listed_cell_fails_in_exactly_one_way(tmp_path: Path) -> None:
    for more, passed in (("", "unexpected_pass"), ("intermittent = true\n", "as_expected")):
        expectations = load(tmp_path, ENTRY + more)
        assert expectations.status(LISTED, CRASH) is ExpectationStatus.KNOWN_FAILURE
        assert expectations.status(LISTED, PASS).value == passed
        for outcome in OTHERS:
            assert expectations.status(LISTED, outcome) is ExpectationStatus.CHANGED_FAILURE
        assert expectations.applicable("0.10.2").of(LISTED)
        assert not expectations.applicable("0.12.0.1").of(LISTED)
    matching = {">=0.10.2": "0.10.2", ">=0.10,<0.12.1": "0.12.0.1", "<0.10": "0.9", "==0.10": "0.10.0", "": "0.10.2"}
    assert all(version_matches(version, specifier) for specifier, version in matching.items())
    assert not any(version_matches("0.10.2", specifier) for specifier in (">0.10.2", "!=0.10.2", "<=0.9"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('link = "https://example.org/1"', "", "'link' is missing"),
        ('"crash(SIGABRT)"', '"sometimes"', "no verdict"),
        ('reason = "planted"', 'reason = "planted"\nblame = "me"', "unknown key 'blame'"),
        ('jax = ">=0.10,<0.12"', 'jax = "0.12"', "entry 1: 'jax': '0.12' is no version comparison"),
        ("[[expect]]", "[[expct]]", "unknown key 'expct'"),
        ('"hostcb/call/*.pmap/cpu-8dev"', "['a', 3]", "'cells' is the id of a cell"),
        # All entries without a reason are named at once.
        ('"planted"', '" "', r"say in 'reason' why it fails.*: entry 1, about .*; entry 2, about [^;]*$"),
    ],
)
def test_malformed_files_say_why(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ExpectationError, match=message):
        load(tmp_path, f"{ENTRY}\n{ENTRY}".replace(old, new))


@pytest.mark.contract("C30")
def test_entries_match_their_plans_and_are_about_what_runs_unless_they_name_a_depth(cpu_plan: Plan) -> None:
    plan = cpu_plan.with_(plan_over_processes(IMPLEMENTATIONS, [USUAL]))
    cells = [cell.id for cell in plan.cells]
    assert load_expectations(EXPECTATIONS / "cpu.toml").at(Depth.RUN).unmatched(cells) == ()
    entry = Expectation(("hostcb/gone/*", cells[0]), "fail", "", "", "")
    assert Expectations((entry,)).unmatched(cells) == ("hostcb/gone/*",)
    running = replace(entry, cells=("hostcb/call/*/tpu-*",))
    entry = replace(entry, cells=("hostcb/call/*/tpu-*", "hostcb/call/*/tpu-*@lower"))
    assert entry.at(Depth.RUN) == running
    assert entry.at(Depth.LOWER) == replace(entry, cells=("hostcb/call/*/tpu-*@lower",))
    assert entry.at(Depth.COMPILE) is None
    found = Expectations((running,))
    assert found.status("hostcb/call/jit/tpu-1dev@lower", PASS) is ExpectationStatus.AS_EXPECTED
    assert found.status("hostcb/call/jit/tpu-1dev", Outcome(Verdict.FAIL)) is ExpectationStatus.KNOWN_FAILURE


def test_a_wrapped_implementation_has_the_known_failures_of_its_base(tmp_path: Path) -> None:
    expectations = load(tmp_path, ENTRY)
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


def fails(cell_id: str, status: str = "unexpected", verdict: str = "fail", **fields: Any) -> dict[str, Any]:
    own = {"stage": "callback" if verdict == "fail" else None, "verdict": verdict}
    return fakes.failed(f"hostcb/{cell_id}", "lost", "cpu:0 never ran #1\nmore", status, **own | fields)


def test_a_cell_that_its_entry_does_not_expect_names_the_file_and_the_entry(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = Report("cpu", load(tmp_path, ENTRY.replace("hostcb/call", "hostcb/other") + ENTRY))
    report.add(parse_cell(LISTED), PASS)
    named = "cpu.toml, entry 2, about 'hostcb/call/*.pmap/cpu-8dev'"
    assert [cell.entry for cell in report.record.cells] == [named]
    assert f"to edit: {named}" in report.summary()
    report.write(tmp_path / "conformance-cpu.json")
    assert main(["expect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"# take {LISTED} out of {named}, which expects crash(SIGABRT): now it is pass\n" in said
    known = Report("cpu", report.expectations)
    known.add(parse_cell(LISTED), CRASH)
    assert [cell.entry for cell in known.record.cells] == [""], "a known failure needs no edit"


@pytest.mark.parametrize(
    ("cell", "outcome", "known"),
    [
        ("jax/debug_print_ordered/pmap/toy-2dev", Outcome(Verdict.FAIL), True),
        ("jax/debug_print_ordered/pmap/acme-npu-16dev", Outcome(Verdict.FAIL), True),
        ("jax/debug_print_ordered/pmap/toy-1dev", Outcome(Verdict.FAIL), False),
        ("jax/debug_print_ordered/pmap/toy-2dev", Outcome(Verdict.HANG), False),
        ("jax/debug_print_ordered/pmap/toy-2dev", Outcome(Verdict.FLAKE), False),
        ("jax/io_and_debug_ordered/jit/toy-1dev", Outcome(Verdict.FLAKE, Stage.CALLBACK), True),
        ("jax/io_and_debug_ordered/jit/toy-1dev", Outcome(Verdict.FLAKE, Stage.RESULT), False),
    ],
)
def test_what_is_known_on_the_cpu(cell: str, outcome: Outcome, known: bool, tmp_path: Path, capsys: Capture) -> None:
    """With another number of devices, if it is several as well, and for a flake, if the CPU fails by chance."""
    made = Report("toy", Expectations())
    made.add(parse_cell(cell), outcome)
    assert (made.record.cells[0].on_cpu is not None) == known
    made.write(tmp_path / "conformance-toy.json")
    main(["expect", str(tmp_path)])
    said = capsys.readouterr().out
    if outcome.verdict is Verdict.FLAKE:
        assert (f'cells = [\n  "{cell}",\n]\nverdict = "fail"' in said) == ("intermittent = true" in said) == known
        assert ("no entry for a flake" in said) is not known


def test_failures_that_are_alike_become_one_entry_and_what_a_person_has_to_change_a_comment() -> None:
    by_chance = {"verdict": "fail", "reason": "why", "link": "https://example.org", "intermittent": True}
    run = fakes.results(
        *map(fails, ("id_tap/scan/cpu-1dev", "id_tap/scan/cpu-8dev", "id_tap/vmap/cpu-8dev")),
        fails("id_tap/vmap/cpu-1dev", "as_expected", "pass"),
        fails("call/vmap/cpu-8dev", verdict="crash(SIGABRT)"),
        fails("call/while_body/cpu-1dev", "known_failure", expected="fail"),
        fails("call/scan/cpu-1dev", "unexpected_pass", "pass", expected="fail"),
        fails("call/cond/cpu-1dev", verdict="flake"),
        fails("call/jit/cpu-1dev", stage="result", on_cpu=by_chance),
        run_info={"cpu-1dev": {"jax": "0.12.0"}},
        stale_expectations=("gone/*",),
    )
    text = "\n".join(entries(record_of(run), "2026-02-02", whole=True))
    found = {entry.cells[0]: entry for entry in read_entries(text, "printed")}
    assert {name for name, entry in found.items() if entry.intermittent} == {"hostcb/call/jit/cpu-1dev"}
    lost, crashed = found["hostcb/id_tap/scan/cpu-*"], found["hostcb/call/vmap/cpu-8dev"]
    assert lost.cells == ("hostcb/id_tap/scan/cpu-*", "hostcb/id_tap/vmap/cpu-8dev")
    assert (lost.verdict, lost.stage, lost.jax, lost.since) == ("fail", Stage.CALLBACK, ">=0.12.0", "2026-02-02")
    assert (crashed.cells, crashed.verdict) == (("hostcb/call/vmap/cpu-8dev",), "crash(SIGABRT)")
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    named = ("'gone/*'", "hostcb/call/scan/cpu-1dev", "hostcb/call/cond/cpu-1dev")
    assert all(name in comment for name, comment in zip(named, comments, strict=False)), comments
