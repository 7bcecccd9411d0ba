"""Depths of a run: who chooses them, which cells they have, what their results are called, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.cli.commands import main
from conformance.engine import depths
from conformance.engine.depths import Chosen, choose
from conformance.engine.options import RunOptions
from conformance.engine.preparation import ConflictingOptionsError, _depth_of
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Verdict
from conformance.planning.cells import CaseCell, ProgramCell, parse_cell
from conformance.planning.depths import at_depth, multi_host_cells
from conformance.planning.selection import undrawn_plan_of
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import load_results
from conformance.spec.depths import Depth
from conformance.spec.platform_targets import TARGETS
from conformance.spec.topology import Topology, WrongPlatformError, parse_topology
from conformance.worker import compile_only

pytestmark = pytest.mark.contract("C30")

GOOD = "hostcb/id_tap/jit/tpu-1dev@lower"


# What a run writes -----------------------------------------------------------------------------------------------


def report(depth: Depth, asked: bool, verdict: Verdict = Verdict.PASS) -> Report:
    cell = parse_cell(GOOD.replace("@lower", "" if depth is Depth.RUN else f"@{depth.value}"))
    found = Report("tpu", Expectations(), depth=depth, depth_asked=asked)
    found.add(cell, Outcome(verdict, shown="lowered" if verdict is Verdict.PASS else ""))
    return found


@pytest.mark.parametrize(
    ("depth", "asked", "code"),
    [
        (Depth.RUN, True, 0),
        (Depth.COMPILE, True, 0),
        (Depth.LOWER, True, 0),
        (Depth.COMPILE, False, 3),
        (Depth.LOWER, False, 4),
    ],
)
def test_the_exit_code_says_that_nothing_ran(depth: Depth, asked: bool, code: int) -> None:
    assert report(depth, asked).exit_code == code
    assert report(depth, asked, Verdict.FAIL).exit_code == 1


def test_results_of_each_depth_have_files_of_their_own(tmp_path: Path) -> None:
    assert [RunOptions("tpu", depth=depth.value).name for depth in Depth] == ["tpu@lower", "tpu@compile", "tpu"]
    found = report(Depth.LOWER, asked=False)
    found.write(tmp_path / "conformance-tpu@lower.json")
    report(Depth.RUN, asked=True).write(tmp_path / "conformance-tpu.json")
    assert json.loads((tmp_path / "conformance-tpu@lower.json").read_text())["depth"] == "lower"
    assert "At depth lower nothing ran on tpu: 1 lowered." in found.summary()
    runs = load_results(tmp_path)
    assert [run.name for run in runs] == ["tpu", "tpu@lower"]
    assert "# Conformance on tpu@lower: as expected" in markdown(runs)
    assert "depth lower: nothing ran, 1 lowered" in markdown(runs)


def test_an_entry_is_about_what_runs_unless_it_names_a_depth() -> None:
    entry = Expectation(("hostcb/call/*/tpu-*", "hostcb/call/*/tpu-*@lower"), "fail", "", "", "")
    assert entry.at(Depth.RUN) == replace(entry, cells=("hostcb/call/*/tpu-*",))
    assert entry.at(Depth.LOWER) == replace(entry, cells=("hostcb/call/*/tpu-*@lower",))
    assert entry.at(Depth.COMPILE) is None
    running = Expectations((replace(entry, cells=("hostcb/call/*/tpu-*",)),))
    assert running.standing("hostcb/call/jit/tpu-1dev@lower", Outcome(Verdict.PASS)) is ExpectationStatus.AS_EXPECTED
    assert running.standing("hostcb/call/jit/tpu-1dev", Outcome(Verdict.FAIL)) is ExpectationStatus.KNOWN_FAILURE
    everywhere = Expectation(("*/*/*/*@*",), "fail", "", "", "")
    assert [everywhere.at(depth) is not None for depth in Depth] == [True, True, False]


# Which depth it is -----------------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, devices: int = 0, compiler: bool = False) -> None:
    def probe(topology: Topology) -> dict[str, Any]:
        if topology.depth is Depth.COMPILE and compiler:
            return {"compiler": "libtpu 1.2"}
        if topology.depth is Depth.RUN and devices:
            return {"device_count": devices}
        raise WrongPlatformError("no device found" if topology.depth is Depth.RUN else "no compiler is installed")

    monkeypatch.setattr(depths, "_probe", probe)


def test_the_deepest_that_the_machine_has_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("cpu", "auto") == Chosen(Depth.RUN)
    machine(monkeypatch, devices=4)
    assert choose("tpu", "auto") == Chosen(Depth.RUN, why="4 devices of tpu found", device_count=4)
    machine(monkeypatch, compiler=True)
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.COMPILE, False)
    assert chosen.why == "no device found; libtpu 1.2 compiles for v5e:1x1, v5e:2x2, v5e:2x4, v5e:4x4"
    machine(monkeypatch)
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.LOWER, False)
    assert chosen.why.startswith("no device found; no compiler is installed")


def test_a_depth_that_is_asked_for_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    with pytest.raises(WrongPlatformError, match="no device found"):
        choose("tpu", "run")
    with pytest.raises(WrongPlatformError, match="no compiler is installed"):
        choose("tpu", "compile")
    assert choose("tpu", "lower") == Chosen(Depth.LOWER)
    with pytest.raises(WrongPlatformError, match="nothing says how programs of acme must look"):
        choose("acme", "lower")


def test_the_ids_of_cells_name_the_depth() -> None:
    def chosen(depth: str, *cell_ids: str) -> Depth:
        return _depth_of([parse_cell(cell_id) for cell_id in cell_ids], depth)

    running = GOOD.removesuffix("@lower")
    assert chosen("auto", GOOD) is Depth.LOWER
    assert chosen("auto", running) is Depth.RUN
    assert chosen("lower", running) is Depth.LOWER
    for depth, cell_ids in (("run", [GOOD]), ("auto", [GOOD, running]), ("compile", [GOOD])):
        with pytest.raises(ConflictingOptionsError, match="one run has one depth"):
            chosen(depth, *cell_ids)


def test_without_hardware_the_depth_run_fails_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--platform", "tpu", "--depth", "run", "--results", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "ERROR: the tpu cells cannot run here" in error
    assert "AssertionError" not in error
    assert "pip install 'jax[tpu]'" in error or "no TPU device" in error
    assert not (tmp_path / "none").exists()


def test_a_cell_is_lowered_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--cell", GOOD, "--results", str(tmp_path)]) == 0
    assert "1 of 1 cells passed" in capsys.readouterr().out
    (run,) = load_results(tmp_path)
    assert (run.depth, run.cells[0].shown) == ("lower", "lowered")


# Which cells it has ----------------------------------------------------------------------------------------------


def test_cells_that_show_nothing_are_left_out_with_the_reason() -> None:
    running = undrawn_plan_of(["hostcb"], "cuda", (1, 4))
    plan = at_depth(running, Depth.LOWER)
    assert at_depth(running, Depth.RUN) is running
    assert all(cell.id.endswith("@lower") for cell in (*plan.cells, *plan.ineligible))
    assert not any(isinstance(cell, CaseCell) for cell in plan.cells)
    reasons = {cell.id: cell.reason for cell in plan.ineligible}
    assert "nothing runs at depth lower" in reasons["hostcb/id_tap/case.raises.jit/cuda-4dev@lower"]
    assert "no program" in reasons["hostcb/id_tap/eager/cuda-1dev@lower"]
    assert "cell on one device" in reasons["hostcb/id_tap/jit/cuda-4dev@lower"]
    left = {cell.id for cell in plan.cells}
    assert {"hostcb/id_tap/jit/cuda-1dev@lower", "hostcb/id_tap/pjit/cuda-4dev@lower"} <= left
    # Pairs of transforms are planned on the larger topology alone, and stay there.
    assert "hostcb/call/jit.scan/cuda-4dev@lower" in left
    assert len(left) == len(plan.cells)


def test_several_hosts_are_compiled_for() -> None:
    plan = at_depth(undrawn_plan_of(["hostcb"], "tpu", (1, 4)), Depth.COMPILE)
    cells = multi_host_cells(plan, "tpu")
    assert len(cells) >= 50
    assert all(isinstance(cell, ProgramCell) and len(cell.program.names) == 1 for cell in cells)
    assert {cell.topology.name for cell in cells} == {"tpu-2x4@compile"}
    assert multi_host_cells(plan, "cpu") == ()


def test_the_environment_of_a_worker_without_hardware() -> None:
    environment = parse_topology("tpu-4dev@compile")[0].environment({"TPU_ACCELERATOR_TYPE": "mine"})
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert environment["TPU_ACCELERATOR_TYPE"] == "mine"
    flags = parse_topology("tpu-2x4@lower")[0].environment({})["XLA_FLAGS"]
    assert "--xla_force_host_platform_device_count=8" in flags
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in parse_topology("tpu-4dev")[0].environment({})


# Whether the compiler checks anything ----------------------------------------------------------------------------


def test_a_compiler_that_accepts_everything_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_only, "_compile", lambda devices, function: None)
    with pytest.raises(
        WrongPlatformError, match="accepted an unknown custom-call target on 1 devices: it checks nothing"
    ):
        compile_only.check_controls(jax.devices()[:1], TARGETS["tpu"])


def test_a_compiler_that_misses_a_sharding_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(devices: Any, function: Any) -> None:
        if len(devices) == 1:
            raise RuntimeError("Custom emitter for conformance_no_such_target not found")

    monkeypatch.setattr(compile_only, "_compile", compile_)
    with pytest.raises(WrongPlatformError, match="accepted an operation with side effects and without a sharding"):
        compile_only.check_controls(jax.devices()[:4], TARGETS["tpu"])
    compile_only.check_controls(jax.devices()[:4], TARGETS["cuda"])


def test_a_refusal_for_another_reason_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(devices: Any, function: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(compile_only, "_compile", compile_)
    with pytest.raises(WrongPlatformError, match=r"for another reason: RuntimeError: out of memory"):
        compile_only.check_controls(jax.devices()[:1], TARGETS["cuda"])


def test_the_compiler_of_the_cpu_refuses_an_unknown_target() -> None:
    topology = parse_topology("cpu-1dev@compile")[0]
    assert compile_only.compile_only_devices(topology) == jax.devices()[:1]


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(WrongPlatformError, match="no compiler for oneapi is known"):
        compile_only.compile_only_devices(Topology("oneapi", 1, depth=Depth.COMPILE))
    with pytest.raises(WrongPlatformError, match="no topology tpu-3dev"):
        compile_only.compile_only_devices(Topology("tpu", 3, depth=Depth.COMPILE))
    if not (pytest.importorskip("importlib.util").find_spec("libtpu")):
        with pytest.raises(WrongPlatformError, match=r"pip install 'jax\[tpu\]'"):
            compile_only.compile_only_devices(Topology("tpu", 1, depth=Depth.COMPILE))


# What a machine with a GPU runs ----------------------------------------------------------------------------------


def test_the_script_for_gpus_says_what_it_would_do(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "ci" / "gpu.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    environment = {**os.environ, "PYTHON": "no-python"}
    command = ["bash", str(script), "--dry-run", str(tmp_path / "out")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    # A run without a GPU must fail, so that it asks for the depth.
    assert f"conformance run --platform cuda --depth run --results {tmp_path / 'out'}" in ended.stdout
    assert all(
        word in ended.stdout for word in ("gpu_recipes.py", "gpu_taps.py", "benchmarks --json", "conformance bundle")
    )
    assert [*tmp_path.iterdir()] == []
