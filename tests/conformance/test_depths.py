"""Depths of a run: how one is chosen, its cells, its files and exit codes, and what a compiler must refuse."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.engine import depths
from conformance.engine.depths import Chosen, choose
from conformance.engine.options import RunOptions
from conformance.engine.preparation import ConflictingOptionsError, _depth_of
from conformance.expectations.entries import Expectation, Expectations
from conformance.oracle.verdicts import ExpectationStatus, Outcome, Verdict
from conformance.planning.cells import CaseCell, parse_cell
from conformance.planning.depths import at_depth
from conformance.planning.selection import undrawn_plan_of
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import load_results
from conformance.spec.depths import Depth
from conformance.spec.platform_targets import TARGETS
from conformance.spec.topology import Topology, WrongPlatformError
from conformance.worker import compile_only

pytestmark = pytest.mark.contract("C30")

GOOD = "hostcb/id_tap/jit/tpu-1dev@lower"
ONE, FOUR = jax.devices()[:1], jax.devices()[:4]


# What a run writes --------------------------------------------------------------------------------------------------


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
    report(Depth.LOWER, asked=False).write(tmp_path / "conformance-tpu@lower.json")
    report(Depth.RUN, asked=True).write(tmp_path / "conformance-tpu.json")
    assert json.loads((tmp_path / "conformance-tpu@lower.json").read_text())["depth"] == "lower"
    runs = load_results(tmp_path)
    assert [run.name for run in runs] == ["tpu", "tpu@lower"]
    assert "at depth lower: nothing ran, 1 lowered" in markdown(runs)


def test_an_expectation_is_about_what_runs_unless_it_names_a_depth() -> None:
    entry = Expectation(("hostcb/call/*/tpu-*", "hostcb/call/*/tpu-*@lower"), "fail", "", "", "")
    assert entry.at(Depth.RUN) == replace(entry, cells=("hostcb/call/*/tpu-*",))
    assert entry.at(Depth.LOWER) == replace(entry, cells=("hostcb/call/*/tpu-*@lower",))
    assert entry.at(Depth.COMPILE) is None
    running = Expectations((replace(entry, cells=("hostcb/call/*/tpu-*",)),))
    assert running.status("hostcb/call/jit/tpu-1dev@lower", Outcome(Verdict.PASS)) is ExpectationStatus.AS_EXPECTED
    assert running.status("hostcb/call/jit/tpu-1dev", Outcome(Verdict.FAIL)) is ExpectationStatus.KNOWN_FAILURE


# Which depth it is --------------------------------------------------------------------------------------------------


def machine(monkeypatch: pytest.MonkeyPatch, devices: int = 0, compiler: bool = False) -> None:
    def probe(topology: Topology) -> dict[str, Any]:
        if topology.depth is Depth.COMPILE and compiler:
            return {"compiler": "libtpu 1.2"}
        if topology.depth is Depth.RUN and devices:
            return {"device_count": devices}
        raise WrongPlatformError("no device found" if topology.depth is Depth.RUN else "no compiler is installed")

    monkeypatch.setattr(depths, "_probe", probe)


def test_a_run_goes_as_deep_as_the_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("cpu", "auto") == Chosen(Depth.RUN)
    machine(monkeypatch, devices=4)
    assert choose("tpu", "auto") == Chosen(Depth.RUN, why="4 devices of tpu found", device_count=4)
    machine(monkeypatch, compiler=True)
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.COMPILE, False)
    assert chosen.why.startswith("no device found; libtpu 1.2 compiles for")
    machine(monkeypatch)
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.LOWER, False)
    assert chosen.why.startswith("no device found; no compiler is installed")


def test_a_depth_that_is_asked_for_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    for depth, words in (("run", "no device found"), ("compile", "no compiler is installed")):
        with pytest.raises(WrongPlatformError, match=words):
            choose("tpu", depth)
    assert choose("tpu", "lower") == Chosen(Depth.LOWER)
    with pytest.raises(WrongPlatformError, match="nothing says how programs of acme must look"):
        choose("acme", "lower")


def test_the_ids_of_cells_name_the_depth() -> None:
    def chosen(depth: str, *cell_ids: str) -> Depth:
        return _depth_of([parse_cell(cell_id) for cell_id in cell_ids], depth)

    running = GOOD.removesuffix("@lower")
    assert (chosen("auto", GOOD), chosen("auto", running), chosen("lower", running)) == (
        *(Depth.LOWER, Depth.RUN, Depth.LOWER),
    )
    for depth, cell_ids in (("run", [GOOD]), ("auto", [GOOD, running]), ("compile", [GOOD])):
        with pytest.raises(ConflictingOptionsError, match="one run has one depth"):
            chosen(depth, *cell_ids)


# Which cells it has -------------------------------------------------------------------------------------------------


def test_cells_that_show_nothing_are_left_out_with_the_reason() -> None:
    running = undrawn_plan_of(["hostcb"], "cuda", (1, 4))
    plan = at_depth(running, Depth.LOWER)
    assert at_depth(running, Depth.RUN) is running
    assert all(cell.id.endswith("@lower") for cell in (*plan.cells, *plan.ineligible))
    assert not any(isinstance(cell, CaseCell) for cell in plan.cells)
    reasons = {cell.id: cell.reason for cell in plan.ineligible}
    assert "nothing runs at depth lower" in reasons["hostcb/id_tap/case.tap_raises.jit/cuda-4dev@lower"]
    assert "no program" in reasons["hostcb/id_tap/eager/cuda-1dev@lower"]
    assert "cell on one device" in reasons["hostcb/id_tap/jit/cuda-4dev@lower"]
    left = {cell.id for cell in plan.cells}
    # Pairs of transforms are planned on the larger topology alone, and stay there.
    assert {f"hostcb/{name}@lower" for name in ("id_tap/jit/cuda-1dev", "id_tap/jit.scan/cuda-4dev")} <= left
    assert len(left) == len(plan.cells)


# Whether the compiler checks anything -------------------------------------------------------------------------------


def accepts(devices: Any, function: Any) -> None: ...


def accepts_no_sharding(devices: Any, function: Any) -> None:
    if len(devices) == 1:
        raise RuntimeError("Custom emitter for conformance_no_such_target not found")


def refuses_everything(devices: Any, function: Any) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("compiler", "platform", "devices", "words"),
    [
        (accepts, "tpu", ONE, "accepted an unknown custom-call target on 1 devices: it checks nothing"),
        (accepts_no_sharding, "tpu", FOUR, "accepted an operation with side effects and without a sharding"),
        (accepts_no_sharding, "cuda", FOUR, None),
        (refuses_everything, "cuda", ONE, "for another reason: RuntimeError: out of memory"),
    ],
)
def test_a_compiler_must_refuse_what_is_wrong(
    compiler: Callable[..., None],
    platform: str,
    devices: list[jax.Device],
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_only, "_compile", compiler)
    if words is None:
        compile_only.check_controls(devices, TARGETS[platform])
        return
    with pytest.raises(WrongPlatformError, match=words):
        compile_only.check_controls(devices, TARGETS[platform])


def test_the_script_for_gpus_shows_its_commands(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "ci" / "gpu.sh"
    command = ["bash", str(script), "--dry-run", str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    # A run without a GPU must fail, so that it asks for the depth.
    assert f"conformance run --platform cuda --depth run --results {tmp_path / 'out'}" in ended.stdout
    assert [*tmp_path.iterdir()] == []
