"""Expectation files follow a run: what changed changes, the rest stays to the byte, and reasons are asked for."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.commands import main
from conformance.cli.expect import Update, update
from conformance.expectations.entries import ExpectationError, load_expectations, read_entries
from conformance.reports.results import SCHEMA_VERSION, RunRecord, load_results

pytestmark = pytest.mark.contract("C7")

ENTRY = """\
[[expect]]
cells = {cells}
verdict = "fail"
stage = "callback"   # as ever
reason = \"\"\"
Planted. The next line is no header:
[[expect]]
# and this no comment.
\"\"\"
link = "https://example.org/1"
since = "2026-01-01"
"""

OTHER = """\
[[ expect ]]
since = "2026-01-01"
verdict='hang'
reason = "odd, but TOML"
link = "none"
cells = [
  "jax/call/pmap/cpu-*",  # why not
]
jax = "<0.12"
"""

FILE = f"""# Known failures.

{ENTRY.format(cells='"hostcb/call/scan/*"')}
# About JAX.

{OTHER}
# The end.
"""

PLANNED = [f"hostcb/{callback}/{program}/cpu-{n}dev" for callback in ("call", "id_tap") for program in ("scan", "vmap")
           for n in (1, 8)]  # fmt: skip


def cell(cell_id: str, verdict: str, standing: str, stage: str | None = None, **fields: Any) -> dict[str, Any]:
    common = {"promises": [], "witness": "lost: cpu:0 never ran #1\nmore", "seconds": 0.1, "history": []}
    own = {"id": cell_id, "verdict": verdict, "standing": standing, "stage": stage, "expected": "pass"}
    return common | own | {"attempts": 1, "reproduce": "", "known": None, "anomaly": ""} | fields


def fails(cell_id: str, standing: str = "unexpected", **fields: Any) -> dict[str, Any]:
    return cell(cell_id, "fail", standing, "callback", **fields)


def passes(cell_id: str, standing: str = "unexpected_pass") -> dict[str, Any]:
    return cell(cell_id, "pass", standing)


def results(folder: Path, *cells: dict[str, Any], jax: str = "0.12.0", stale: tuple[str, ...] = ()) -> RunRecord:
    run = {
        "schema": SCHEMA_VERSION,
        "platform": "cpu",
        "run_info": {"cpu-1dev": {"jax": jax}},
        "seconds": 1.0,
        "exit_code": 1,
        "problems": [],
        "stale_expectations": stale,
        "cells": cells,
        "ineligible": [],
    }
    (folder / "conformance-cpu.json").write_text(json.dumps(run))
    (record,) = load_results(folder)
    return record


def updated(run: RunRecord, text: str = FILE) -> Update:
    return update(text, "cpu.toml", run, PLANNED, "2026-02-02")


def test_good_run_changes_nothing(tmp_path: Path) -> None:
    known = fails("hostcb/call/scan/cpu-1dev", "known_failure")
    found = updated(results(tmp_path, known, cell("hostcb/call/vmap/cpu-1dev", "pass", "as_expected")))
    assert found.text == FILE
    assert found.done == []


def test_new_failures_that_are_alike_become_one_entry(tmp_path: Path) -> None:
    run = results(
        tmp_path,
        fails("hostcb/id_tap/scan/cpu-1dev"),
        fails("hostcb/id_tap/scan/cpu-8dev"),
        fails("hostcb/id_tap/vmap/cpu-8dev"),
        cell("hostcb/call/vmap/cpu-8dev", "crash(SIGABRT)", "unexpected"),
    )
    found = updated(run)
    assert found.text.startswith(FILE)
    assert (
        found.text.removeprefix(FILE)
        == """
# lost: cpu:0 never ran #1
[[expect]]
cells = [
  "hostcb/id_tap/scan/cpu-*",
  "hostcb/id_tap/vmap/cpu-8dev",
]
verdict = "fail"
stage = "callback"
jax = ">=0.12.0"
reason = ""
link = ""
since = "2026-02-02"

# lost: cpu:0 never ran #1
[[expect]]
cells = "hostcb/call/vmap/cpu-8dev"
verdict = "crash(SIGABRT)"
jax = ">=0.12.0"
reason = ""
link = ""
since = "2026-02-02"
"""
    )
    assert [line.partition(":")[0] for line in found.done] == ["added", "added"]


def test_entry_goes_with_its_last_cell(tmp_path: Path) -> None:
    run = results(tmp_path, *(passes(f"hostcb/call/scan/cpu-{n}dev") for n in (1, 8)))
    found = updated(run)
    assert found.text == f"# Known failures.\n\n# About JAX.\n\n{OTHER}\n# The end.\n"
    assert found.done == ["removed: entry 1: hostcb/call/scan/*: they do something else now"]


def test_comment_right_above_an_entry_goes_with_it(tmp_path: Path) -> None:
    entry = ENTRY.format(cells='"hostcb/call/scan/*"')
    run = results(tmp_path, *(passes(f"hostcb/call/scan/cpu-{n}dev") for n in (1, 8)))
    assert updated(run, f"# About all.\n\n# It fails.\n{entry}").text == "# About all.\n\n"


def test_entry_is_narrowed_to_what_still_fails(tmp_path: Path) -> None:
    """The cell that was not run stays in it."""
    found = updated(results(tmp_path, passes("hostcb/call/scan/cpu-8dev")))
    assert found.text == FILE.replace('"hostcb/call/scan/*"', '"hostcb/call/scan/cpu-1dev"')
    assert found.done == ["narrowed: entry 1: hostcb/call/scan/*: to 1 of 2 cells"]


def test_other_failure_moves_to_an_entry_of_its_own(tmp_path: Path) -> None:
    run = results(tmp_path, cell("hostcb/call/scan/cpu-8dev", "hang", "changed_failure"))
    found = updated(run)
    narrowed = FILE.replace('"hostcb/call/scan/*"', '"hostcb/call/scan/cpu-1dev"')
    assert found.text.startswith(narrowed)
    assert 'cells = "hostcb/call/scan/cpu-8dev"\nverdict = "hang"\njax = ">=0.12.0"\nreason = ""' in found.text


def test_stale_globs_go(tmp_path: Path) -> None:
    text = ENTRY.format(cells='["hostcb/call/gone/*", "hostcb/call/scan/*"]')
    run = results(tmp_path, fails("hostcb/call/scan/cpu-1dev", "known_failure"), stale=("hostcb/call/gone/*",))
    assert updated(run, text).text == ENTRY.format(cells='"hostcb/call/scan/*"')


def test_entries_of_other_versions_are_left_alone(tmp_path: Path) -> None:
    failing = cell("jax/call/pmap/cpu-1dev", "pass", "as_expected")
    assert updated(results(tmp_path, failing)).text == FILE
    old = results(tmp_path, passes("jax/call/pmap/cpu-1dev"), jax="0.10.2")
    assert OTHER not in updated(old).text


@pytest.mark.parametrize(
    ("version", "written"),
    [("0.10.2", ">=0.10.2"), ("0.12.0.1", ">=0.12.0.1"), ("0.13.0.dev20261122", ">=0.13.0"), ("0.9+own", ">=0.9")],
)
def test_new_entries_hold_from_the_version_on_which_they_were_seen(version: str, written: str, tmp_path: Path) -> None:
    run = results(tmp_path, fails("hostcb/id_tap/scan/cpu-1dev"), jax=version)
    assert f'stage = "callback"\njax = "{written}"\nreason = ""' in updated(run).text
    for given in ("", ">=0.5"):
        entry = read_entries(update(FILE, "cpu.toml", run, PLANNED, "2026-02-02", given).text, "cpu.toml")[-1]
        assert entry.jax == given


NEWER = """\
[[expect]]
cells = "hostcb/call/scan/*"
verdict = "fail"
reason = \"\"\"
Planted. The next line is no key:
jax = ">=1"
\"\"\"
jax = ">=0.12,<0.13"  # as far as we know
link = "none"
since = "2026-01-01"
"""


def test_an_entry_follows_to_an_older_release_on_which_it_was_seen_too(tmp_path: Path) -> None:
    both = [fails(f"hostcb/call/scan/cpu-{n}dev") for n in (1, 8)]
    found = updated(results(tmp_path, *both, jax="0.10.2"), NEWER)
    assert found.text == NEWER.replace('jax = ">=0.12,<0.13"  # as far as we know', 'jax = ">=0.10.2,<0.13"')
    assert found.done == ["widened: entry 1: >=0.12,<0.13: seen on 0.10.2, too"]


@pytest.mark.parametrize(
    ("cells", "version"),
    [
        ([fails("hostcb/call/scan/cpu-1dev"), cell("hostcb/call/scan/cpu-8dev", "pass", "as_expected")], "0.10.2"),
        ([cell("hostcb/call/scan/cpu-1dev", "hang", "unexpected")], "0.10.2"),
        ([fails("hostcb/call/scan/cpu-1dev")], "0.13.0"),
    ],
    ids=["passes in part", "fails otherwise", "newer"],
)
def test_an_entry_stays_if_it_would_be_wrong_there(tmp_path: Path, cells: list[Any], version: str) -> None:
    found = updated(results(tmp_path, *cells, jax=version), NEWER)
    assert found.text.startswith(NEWER)
    assert read_entries(found.text, "cpu.toml")[-1].jax == f">={version}"


def test_a_release_that_nobody_ran_is_not_judged_by_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run on a release that is older than the one on which a failure was seen counts it as new."""
    known = "jax/io_callback/grad.scan.detached/cpu-1dev"
    versions = {"jax": "0.11.0"}
    installed = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or installed(name))
    path = tmp_path / "cpu.toml"
    path.write_text(
        f'[[expect]]\ncells = "{known}"\nverdict = "fail"\njax = ">=0.12.0.1"\n'
        'reason = "Dropped."\nlink = "none"\nsince = "2026-02-02"\n'
    )
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--expectations", str(path), "--cell", known]
    assert main(arguments) == 1
    assert f"UNEXPECTED: {known}: fail at callback (expected pass" in capsys.readouterr().out


@pytest.mark.parametrize("verdict", ["flake", "missing", "harness_error"])
def test_what_is_no_failure_is_not_expected(tmp_path: Path, verdict: str) -> None:
    found = updated(results(tmp_path, cell("hostcb/id_tap/scan/cpu-1dev", verdict, "unexpected")))
    assert found.text == FILE
    assert found.done == [f"NOT added, since a {verdict} is nothing to expect: hostcb/id_tap/scan/cpu-1dev"]


def test_witness_cannot_spoil_the_file(tmp_path: Path) -> None:
    evil = fails("hostcb/id_tap/scan/cpu-1dev", witness='\x00\x1b[31m """ \x7f [[expect]]')
    text = updated(results(tmp_path, evil)).text
    path = tmp_path / "cpu.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError, match="say in 'reason' why it fails"):
        load_expectations(path)


def test_command_from_a_run_to_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run refuses the file until somebody has said why; then everything is expected."""
    known = "jax/io_callback/grad.scan.detached/cpu-1dev"
    expectations = tmp_path / "cpu.toml"
    expectations.touch()
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--expectations", str(expectations), "--cell", known]
    assert main(arguments) == 1
    assert main(["expect", "--from", str(tmp_path), "--file", str(expectations)]) == 0
    assert f"added: fail at callback: {known}" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "say in 'reason' why it fails" in capsys.readouterr().err
    explained = expectations.read_text().replace('reason = ""', 'reason = "JAX drops it"')
    expectations.write_text(explained.replace('link = ""', 'link = "https://example.org/1"'))
    assert main(arguments) == 0
    assert main(["expect", "--from", str(tmp_path), "--file", str(expectations)]) == 0
    assert "nothing changed" in capsys.readouterr().out


def test_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expect", "--from", str(tmp_path)]) == 2
    assert "holds no conformance-PLATFORM.json" in capsys.readouterr().err
