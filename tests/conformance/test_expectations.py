"""Known failures are exact and strict in both directions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.engine.preparation import IMPLEMENTATIONS
from conformance.expectations.entries import (
    EXPECTATIONS,
    ExpectationError,
    Expectations,
    load_expectations,
    read_entries,
)
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from conformance.planning.processes import USUAL, plan_over_processes
from conformance.planning.selection import CPU_DEVICE_COUNTS, plan_of
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
CRASH = Outcome(Verdict.CRASH, Stage.CALLBACK, signal="SIGABRT")


@pytest.fixture
def expectations(tmp_path: Path) -> Expectations:
    return load(tmp_path, ENTRY)


def load(folder: Path, text: str) -> Expectations:
    path = folder / "cpu.toml"
    path.write_text(text)
    return load_expectations(path)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (CRASH, ExpectationStatus.KNOWN_FAILURE),
        (Outcome(Verdict.PASS), ExpectationStatus.UNEXPECTED_PASS),
        (Outcome(Verdict.CRASH, Stage.CALLBACK, signal="SIGSEGV"), ExpectationStatus.CHANGED_FAILURE),
        (Outcome(Verdict.CRASH, Stage.EXIT, signal="SIGABRT"), ExpectationStatus.CHANGED_FAILURE),
        (Outcome(Verdict.FAIL, Stage.CALLBACK), ExpectationStatus.CHANGED_FAILURE),
        (Outcome(Verdict.HANG), ExpectationStatus.CHANGED_FAILURE),
        (Outcome(Verdict.HARNESS_ERROR), ExpectationStatus.CHANGED_FAILURE),
    ],
)
def test_listed_cell(expectations: Expectations, outcome: Outcome, status: ExpectationStatus) -> None:
    assert expectations.status(LISTED, outcome) is status


def test_versions_choose_entries(expectations: Expectations) -> None:
    assert expectations.applicable("0.10.2").of(LISTED)
    assert not expectations.applicable("0.12.0.1").of(LISTED)


def test_several_patterns_are_each_matched(tmp_path: Path) -> None:
    listed = ENTRY.replace('"hostcb/call/*.pmap/cpu-8dev"', '["hostcb/call/jit/*", "hostcb/call/vmap/*"]')
    expectations = load(tmp_path, listed)
    assert expectations.status("hostcb/call/vmap/cpu-1dev", CRASH) is ExpectationStatus.KNOWN_FAILURE
    assert expectations.status(LISTED, CRASH) is ExpectationStatus.UNEXPECTED
    assert expectations.unmatched(["hostcb/call/vmap/cpu-1dev"]) == ("hostcb/call/jit/*",)


def test_intermittent_cells_may_pass_and_must_not_fail_otherwise(tmp_path: Path) -> None:
    expectations = load(tmp_path, ENTRY + "intermittent = true\n")
    assert expectations.status(LISTED, CRASH) is ExpectationStatus.KNOWN_FAILURE
    assert expectations.status(LISTED, Outcome(Verdict.PASS)) is ExpectationStatus.AS_EXPECTED
    assert expectations.status(LISTED, Outcome(Verdict.HANG)) is ExpectationStatus.CHANGED_FAILURE


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('link = "https://example.org/1"', "", "'link' is missing"),
        ("since =", "sinse =", "'since' is missing"),
        ('stage = "callback"', 'stage = "later"', "no stage"),
        ('"crash(SIGABRT)"', '"sometimes"', "no verdict"),
        ('reason = "planted"', 'reason = "planted"\nblame = "me"', "unknown key 'blame'"),
        ('reason = "planted"', 'reason = "planted"\nintermittent = "often"', "'intermittent' is true or false"),
        ('jax = ">=0.10,<0.12"', 'jax = "0.12"', "entry 1: 'jax': '0.12' is no version comparison"),
        ("[[expect]]", "[[expect]", "not TOML"),
        ("[[expect]]", "[[expct]]", "unknown key 'expct'"),
        ("[[expect]]", "[expect]", "'expect' is no list of tables"),
        ('"hostcb/call/*.pmap/cpu-8dev"', "['a', 3]", "'cells' is the id of a cell, or a glob, or a list of them"),
        ('"hostcb/call/*.pmap/cpu-8dev"', "[]", "'cells' is the id of a cell, or a glob, or a list of them"),
        ('"crash(SIGABRT)"', "7", "'verdict' is a text in quotes"),
    ],
)
def test_malformed_files_say_why(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ExpectationError, match=message):
        load(tmp_path, ENTRY.replace(old, new))


@pytest.mark.parametrize(
    ("version", "specifier", "matches"),
    [
        ("0.10.2", "", True),
        ("0.10.2", ">=0.10.2", True),
        ("0.10.2", ">0.10.2", False),
        ("0.12.0.1", ">=0.10,<0.12.1", True),
        ("0.9", "<0.10", True),
        ("0.10.0", "==0.10", True),
        ("0.10.0", "<=0.9", False),
    ],
)
def test_version_comparison(version: str, specifier: str, matches: bool) -> None:
    assert version_matches(version, specifier) is matches


def test_files_of_the_project_match_their_plans() -> None:
    plan = plan_of(IMPLEMENTATIONS, "cpu", CPU_DEVICE_COUNTS).with_(plan_over_processes(IMPLEMENTATIONS, [USUAL]))
    expectations = load_expectations(EXPECTATIONS / "cpu.toml")
    assert expectations.unmatched([cell.id for cell in plan.cells]) == ()


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
