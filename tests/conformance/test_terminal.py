"""What a run prints at its end, and the page that it writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from results_fakes import KNOWN, LOST, PASSED, Page, cell, results

from conformance.cli.commands import COMMANDS, main
from conformance.reports.html import html
from conformance.reports.results import record_of
from conformance.reports.terminal import MOST_KNOWN, summary
from conformance.spec.package import COMMAND, command_here

pytestmark = pytest.mark.contract("C70")


def lost(place: int) -> dict[str, object]:
    name = f"hostcb/call/scan/cpu-{place}dev"
    return cell(name, **(LOST | {"id": name, "witness": f"lost: cpu:{place} never ran #{place}"}))


def test_cells_of_one_cause_are_one_entry_and_the_block_is_the_end() -> None:
    swapped = LOST | {"id": "hostcb/tap/scan/cpu-1dev", "anomaly": "order", "witness": "order: cpu:0 ran #7 before #6"}
    run = record_of(results(PASSED, KNOWN, swapped, *map(lost, range(33)), problems=["a worker could not end"]))
    before, block = summary(run, page=Path("results/index.html")).split("\n\n")
    assert before.count("UNEXPECTED: ") == 2
    assert "33 cells, hostcb/call/scan/cpu-0dev for one" in before
    assert before.index("cpu:0 never ran #0") < before.index("order: cpu:0 ran #7")
    lines = block.splitlines()
    assert lines[0] == "FAIL"
    assert len(lines) <= 12
    for fact in ("JAX 0.12.0.1", "1 of 36 cells passed", "34 unexpected results"):
        assert fact in block
    assert lines[-1].endswith(" results/index.html")
    assert [len(cause["cells"]) for cause in Page(html([run])).data["runs"][0]["causes"]] == [33, 1]


def test_a_good_run_is_its_block_alone() -> None:
    run = record_of(results(PASSED, KNOWN))
    assert summary(run).startswith("PASS\n")
    assert summary(run, colour=True).startswith("\033[1;32mPASS\033[0m\n")
    assert "Dropped under grad." not in summary(run)
    assert "Dropped under grad." in summary(run, known=True)


def test_the_reasons_of_many_known_failures_are_cut() -> None:
    def known(place: int) -> dict[str, object]:
        why = KNOWN["known"] | {"reason": f"Reason {place}."}
        return KNOWN | {"id": f"jax/io_callback/grad.scan/cpu-{place}dev", "known": why}

    said = summary(record_of(results(PASSED, *map(known, range(MOST_KNOWN + 2)))), known=True)
    assert f"Reason {MOST_KNOWN - 1}." in said
    assert f"Reason {MOST_KNOWN}." not in said
    assert "... and 2 more reasons of known failures" in said


def test_a_witness_cannot_control_the_terminal() -> None:
    text = summary(record_of(results(LOST | {"witness": "\033[2J\rPASS"}, problems=["one\nPASS"])))
    assert "\033" not in text
    assert "\r" not in text
    assert "PASS" not in text.splitlines()


def test_a_run_of_chosen_cells_writes_a_page_and_says_why_one_is_known_to_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = "jax/io_callback/grad.scan.detached/cpu-1dev"
    passing = "hostcb/call/jit/cpu-1dev"
    assert main(["run", "-n", "1", "--results", str(tmp_path), "--cell", failing, "--cell", passing]) == 0
    printed = capsys.readouterr().out
    page = tmp_path / "index.html"
    assert printed.rstrip().endswith(str(page))
    (run,) = Page(page.read_text()).data["runs"]
    assert run["good"]
    reasons = [known["reason"] for known in Page(page.read_text()).data["known"]]
    assert all(reason in printed for reason in reasons)
    assert reasons


def test_a_printed_command_names_the_interpreter_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "environment/bin/python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert command_here(f"{COMMAND} run") == "environment/bin/python -m conformance run"
    monkeypatch.setenv("PATH", str(program.parent))
    assert shutil.which("python") == str(program)
    assert command_here(f"{COMMAND} run") == "python -m conformance run"


def without_jax(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys, runpy; sys.modules['jax'] = None; runpy.run_module('conformance', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_command_that_needs_jax_says_how_to_get_it(tmp_path: Path) -> None:
    ended = without_jax("run", "--smoke", folder=tmp_path)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pip install jax" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_needs_no_jax(command: str, tmp_path: Path) -> None:
    ended = without_jax(command, "-h", folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert command in ended.stdout


def test_the_page_knows_the_programs_that_have_no_transforms() -> None:
    """They come after those with transforms; otherwise the first screen of the matrix is empty."""
    named = re.search(r"const kind = \{ (.*?) \}", html([]))
    assert named
    known = {word.partition(":")[0] for word in named[1].split(", ")}
    ids = (
        "hostcb/call/table.call.jit/cpu-1dev",
        "hostcb/call/case.raises.jit/cpu-1dev",
        "hostcb/call/jit.scan/cpu-1dev",
    )
    transforms = [one.transforms for one in record_of(results(*map(cell, ids))).cells]
    assert [known.issuperset(one) for one in transforms] == [True, True, False]
