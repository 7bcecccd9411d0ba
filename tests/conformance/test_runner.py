"""Whole runs in worker processes: crashes, hangs, missing hardware, nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.commands import main
from conformance.expectations.entries import Expectations
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Verdict
from conformance.planning.cells import make_plan
from conformance.reports.report import Report
from conformance.spec.topology import Topology

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DEADLINE = 120.0


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{HERE}")


def run_fakes(folder: Path, implementation: str, *callbacks: str) -> tuple[int, dict[str, Any]]:
    """Run `eager` cells of a fake implementation in one worker, in the given order."""
    arguments = ["run", "-n", "1", "--deadline", "3", "--results", str(folder)]
    for callback in callbacks:
        cell = f"implementation_fakes:{implementation}/{callback}/eager/cpu-1dev"
        arguments += ["--cell", cell]
    code = main(arguments)
    return code, {cell["id"].split("/")[1]: cell for cell in report_of(folder)["cells"]}


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "conformance-cpu.json").read_text())
    return report


def in_flight(folder: Path, callback: str) -> list[str]:
    """The journal's events about runs of one cell."""
    lines = (folder / "journal-cpu.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] in ("begin", "end")]
    return [event["event"] for event in events if f"/{callback}/" in event["cell"]]


def test_good_run(tmp_path: Path) -> None:
    code, cells = run_fakes(tmp_path, "GOOD", "id_tap", "call")
    assert code == 0
    assert [cell["verdict"] for cell in cells.values()] == ["pass", "pass"]
    report = report_of(tmp_path)
    assert report["schema"] == 1
    assert report["run_info"]["cpu-1dev"]["device_count"] == 1
    assert cells["call"]["reproduce"].startswith("python -m conformance run --cell")
    assert cells["call"]["history"] == []


@pytest.mark.contract("C4")
def test_crash_is_charged_to_its_cell(tmp_path: Path) -> None:
    code, cells = run_fakes(tmp_path, "DIES_IN_CALL", "id_tap", "call", "call_no_result")
    assert code == 1
    assert cells["id_tap"]["verdict"] == "pass"
    assert cells["call"]["verdict"] == "crash(SIGABRT)"
    assert cells["call"]["attempts"] == 2
    assert "Fatal Python error: Aborted" in cells["call"]["witness"]
    assert cells["call_no_result"]["verdict"] == "pass"
    assert in_flight(tmp_path, "call") == ["begin", "end"] * 2


@pytest.mark.contract("C4")
def test_hang_is_charged_to_its_cell_with_its_stacks(tmp_path: Path) -> None:
    code, cells = run_fakes(tmp_path, "BLOCKS_IN_CALL", "call", "call_no_result")
    assert code == 1
    assert cells["call"]["verdict"] == "hang"
    assert "in _block" in cells["call"]["witness"]
    assert cells["call_no_result"]["verdict"] == "pass"


@pytest.mark.contract("C7")
def test_trouble_after_other_cells_only_is_a_flake(tmp_path: Path) -> None:
    code, cells = run_fakes(tmp_path, "FAILS_AFTER_ANOTHER", "id_tap", "call")
    assert code == 1
    assert cells["call"]["verdict"] == "flake"
    assert "fail after other cells, pass alone" in cells["call"]["witness"]
    # The command to reproduce it has the cells before it.
    assert "/id_tap/eager/" in cells["call"]["reproduce"]


ORDER_PROGRAMS = ("scan", "fori", "shard_map")


@pytest.mark.parametrize("implementation", ["ORDERED", "UNORDERED"])
def test_order_is_really_tested(tmp_path: Path, implementation: str) -> None:
    arguments = ["run", "-n", "1", "--results", str(tmp_path)]
    for program in ORDER_PROGRAMS:
        arguments += ["--cell", f"implementation_fakes:{implementation}/id_tap/{program}/cpu-2dev"]
    code = main(arguments)
    witnesses = [cell["witness"] for cell in report_of(tmp_path)["cells"]]
    if implementation == "ORDERED":
        assert code == 0, witnesses
    else:
        # Which of them fail is up to the compiler.
        assert code == 1
        assert any(witness.startswith("order: cpu:0 ran #") for witness in witnesses)


def test_implementation_that_workers_cannot_import_is_not_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # As errors, warnings would end the workers before they import it.
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    code, cells = run_fakes(tmp_path, "GOOD", "id_tap", "call")
    assert code == 2
    assert {cell["verdict"] for cell in cells.values()} == {"missing"}
    (problem,) = report_of(tmp_path)["problems"]
    assert "did not start: " in problem
    assert "implementation_fakes" in problem


@pytest.mark.contract("C3")
def test_no_cells_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is written: the folder may have the results of another run."""
    earlier = tmp_path / "conformance-cpu.json"
    earlier.write_text("results")
    assert main(["run", "--results", str(tmp_path), "-k", "id_tap and no_such_cell"]) == 2
    assert capsys.readouterr().err == "ERROR: no cell's id matches 'id_tap and no_such_cell'\n"
    assert earlier.read_text() == "results"


@pytest.mark.contract("C3")
@pytest.mark.parametrize("platform", ["rocm", "nonesuch"])
def test_missing_hardware_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], platform: str) -> None:
    cell = f"hostcb/id_tap/jit/{platform}-1dev"
    assert main(["run", "-n", "1", "--platform", platform, "--cell", cell, "--results", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert f"the {platform} cells cannot run here" in errors
    assert "nothing was tested" in errors


@pytest.mark.contract("C3")
def test_missing_devices_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer devices than the worker was promised, as on a machine that lost one.
    monkeypatch.setattr(Topology, "environment", lambda self, inherited, *_: {**inherited, "JAX_PLATFORMS": "cpu"})
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    arguments = ["run", "-n", "1", "--results", str(tmp_path), "--cell", "hostcb/id_tap/jit/cpu-4dev"]
    assert main(arguments) == 2
    assert "asked for 4 cpu devices, JAX found 2 cpu" in capsys.readouterr().err


JIT = ["--cell", "hostcb/id_tap/jit/cpu-1dev"]
UNUSABLE: dict[str, tuple[list[str], str]] = {
    "platforms": (["run", "--platform", "cuda", *JIT], "--cell and --platform name cpu, cuda"),
    "cells and devices": (["run", *JIT, "--devices", "1"], "so --devices has no meaning with it"),
    "two sizes": (["run", "--smoke", "--full"], "--smoke and --full exclude each other"),
    "a file without cells": (["run", "--cell", "@/dev/null"], "/dev/null names no cell"),
    "json": (["list", "--json"], "--json is for --coverage"),
    "nothing listed": (["list", "-k", "no_such_cell"], "no cell matches"),
    "no such mutant": (["mutants", "-k", "no_such_mutant"], "no mutant's name contains no_such_mutant"),
    "results in a file": (["run", *JIT, "--results", __file__], "File exists"),
    "results below a file": (["run", *JIT, "--results", f"{__file__}/x"], "Not a directory"),
    "expectations in a folder": (["run", *JIT, "--expectations", "/"], "Is a directory"),
    "program in no folder": (["repro", JIT[1], "--program", f"{__file__}/x"], "Not a directory"),
}


@pytest.mark.parametrize(("arguments", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_options_take_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    errors = capsys.readouterr().err.strip()
    assert errors.startswith("ERROR: ")
    assert message in errors
    assert "\n" not in errors


def test_reader_that_has_seen_enough() -> None:
    command = f"{sys.executable} -m conformance list | head -1"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (ended.stdout.count("\n"), ended.stderr) == (1, "")


def test_exit_codes_and_summary() -> None:
    cell = make_plan(["hostcb"], [Topology("cpu", 1)]).cells[0]
    report = Report("cpu", Expectations())
    assert report.exit_code == 2
    report.add(cell, Outcome(Verdict.PASS))
    assert report.exit_code == 0
    report.problems.append("a worker could not end")
    assert report.exit_code == 1
    assert "PROBLEM: a worker could not end" in report.summary()


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - {Verdict.PASS}, key=str))
def test_nothing_but_a_pass_passes(verdict: Verdict) -> None:
    cell = make_plan(["hostcb"], [Topology("cpu", 1)]).cells[0]
    report = Report("cpu", Expectations())
    assert report.add(cell, Outcome(verdict)).status is ExpectationStatus.UNEXPECTED
    assert report.exit_code != 0
    assert cell.id in report.summary()
