"""`expect`: what a run found becomes entries to paste, which a run refuses until somebody has written the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import results_fakes as fakes

from conformance.cli.commands import main
from conformance.cli.expect import entries
from conformance.expectations.entries import ExpectationError, load_expectations, read_entries
from conformance.reports.results import RunRecord, load_results

pytestmark = pytest.mark.contract("C7")


def cell(cell_id: str, verdict: str, status: str, stage: str | None = None, **fields: Any) -> dict[str, Any]:
    own = {"verdict": verdict, "status": status, "stage": stage, "witness": "lost: cpu:0 never ran #1\nmore"}
    return fakes.cell(cell_id, **own | fields)


def fails(cell_id: str, status: str = "unexpected", **fields: Any) -> dict[str, Any]:
    return cell(cell_id, "fail", status, "callback", **fields)


def results(folder: Path, *cells: dict[str, Any], jax: str = "0.12.0", stale: tuple[str, ...] = ()) -> RunRecord:
    fakes.write(folder, *cells, run_info={"cpu-1dev": {"jax": jax}}, stale_expectations=stale)
    (record,) = load_results(folder)
    return record


def printed(run: RunRecord, whole: bool = True) -> str:
    return "\n".join(entries(run, "2026-02-02", whole=whole))


def test_a_run_that_is_as_expected_asks_for_nothing(tmp_path: Path) -> None:
    known = fails("hostcb/call/scan/cpu-1dev", "known_failure", expected="fail")
    assert printed(results(tmp_path, known, cell("hostcb/call/vmap/cpu-1dev", "pass", "as_expected"))) == ""


def test_failures_that_are_alike_become_one_entry(tmp_path: Path) -> None:
    run = results(
        tmp_path,
        fails("hostcb/id_tap/scan/cpu-1dev"),
        fails("hostcb/id_tap/scan/cpu-8dev"),
        fails("hostcb/id_tap/vmap/cpu-8dev"),
        cell("hostcb/id_tap/vmap/cpu-1dev", "pass", "as_expected"),
        cell("hostcb/call/vmap/cpu-8dev", "crash(SIGABRT)", "unexpected"),
    )
    lost, crashed = read_entries(printed(run), "printed")
    assert lost.cells == ("hostcb/id_tap/scan/cpu-*", "hostcb/id_tap/vmap/cpu-8dev")
    assert (lost.verdict, lost.stage and lost.stage.value, lost.jax, lost.since) == (
        *("fail", "callback", ">=0.12.0", "2026-02-02"),
    )
    assert (crashed.cells, crashed.verdict) == (("hostcb/call/vmap/cpu-8dev",), "crash(SIGABRT)")
    assert printed(run).startswith("\n# lost: cpu:0 never ran #1\n[[expect]]\n")


@pytest.mark.contract("C51")
def test_a_cause_has_one_entry(tmp_path: Path) -> None:
    names = [f"jax/{callback}/scan/cpu-1dev" for callback in ("io_callback", "pure_callback")]
    run = results(tmp_path, *(cell(name, "unsupported", "unexpected", "lower", cause="no tokens") for name in names))
    (entry,) = read_entries(printed(run), "printed")
    assert [*entry.cells] == names


def test_what_a_person_has_to_change_is_a_comment(tmp_path: Path) -> None:
    run = results(
        tmp_path,
        cell("hostcb/call/scan/cpu-1dev", "pass", "unexpected_pass", expected="fail"),
        fails("hostcb/call/vmap/cpu-1dev", "changed_failure", expected="hang"),
        cell("hostcb/call/cond/cpu-1dev", "flake", "unexpected"),
        stale=("gone/*",),
    )
    comments = [line for line in printed(run).splitlines() if line.startswith("# ")]
    assert comments[:4] == [
        "# remove 'gone/*' from its entry: it matches no cell",
        "# its entry expects fail, and now it is pass: remove from there hostcb/call/scan/cpu-1dev",
        "# its entry expects hang, and now it is fail at callback: remove from there hostcb/call/vmap/cpu-1dev",
        "# no entry, since a flake is nothing to expect: hostcb/call/cond/cpu-1dev",
    ]
    (entry,) = read_entries(printed(run), "printed")
    assert entry.cells == ("hostcb/call/vmap/cpu-1dev",)


def test_a_witness_and_an_id_cannot_spoil_the_file(tmp_path: Path) -> None:
    evil = '\x00\x1b[31m """ \x7f \U0001f600 [[expect]]\n'
    text = printed(results(tmp_path, fails(f"hostcb/{evil}/scan/cpu-1dev", witness=evil)))
    (entry,) = read_entries(text, "printed")
    assert entry.cells == (f"hostcb/{evil}/scan/cpu-1dev",)


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
    printed = capsys.readouterr().out
    # As it is the only cell.
    assert "dropped" in printed and printed.rstrip().endswith(str(tmp_path / "index.html"))
    assert fakes.Page((tmp_path / "index.html").read_text()).data["known"][0]["reason"] == "dropped"
    assert main(["expect", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
