"""Depths of a run: how one is chosen, its cells, its files and exit codes, and what a compiler must refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.engine import depths
from conformance.engine.depths import Chosen, choose
from conformance.engine.options import RunOptions
from conformance.engine.preparation import ConflictingOptionsError, _depth_of
from conformance.expectations.entries import Expectations
from conformance.oracle.verdicts import Outcome, Verdict
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

RUNNING, GOOD = (parse_cell(f"hostcb/id_tap/jit/tpu-1dev{depth}") for depth in ("", "@lower"))


def report(depth: Depth, asked: bool, verdict: Verdict = Verdict.PASS) -> Report:
    cell = RUNNING if depth is Depth.RUN else parse_cell(f"{RUNNING.id}@{depth.value}")
    found = Report("tpu", Expectations(), depth=depth, depth_asked=asked)
    found.add(cell, Outcome(verdict, shown="lowered" if verdict is Verdict.PASS else ""))
    return found


def test_exit_codes_and_files_say_that_nothing_ran(tmp_path: Path) -> None:
    codes = {Depth.RUN: 0, Depth.COMPILE: 3, Depth.LOWER: 4}
    for depth, code in codes.items():
        assert (report(depth, asked=False).exit_code, report(depth, asked=True).exit_code) == (code, 0)
        assert report(depth, asked=False, verdict=Verdict.FAIL).exit_code == 1
    assert [RunOptions("tpu", depth=depth.value).name for depth in Depth] == ["tpu@lower", "tpu@compile", "tpu"]
    report(Depth.LOWER, asked=False).write(tmp_path / "conformance-tpu@lower.json")
    report(Depth.RUN, asked=True).write(tmp_path / "conformance-tpu.json")
    runs = load_results(tmp_path)
    assert [(run.name, run.depth) for run in runs] == [("tpu", "run"), ("tpu@lower", "lower")]
    assert "at depth lower: nothing ran, 1 lowered" in markdown(runs)


def test_a_run_goes_as_deep_as_the_machine_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A depth that is asked for is not replaced by another."""
    devices, compiler = 0, False

    def probe(topology: Topology) -> dict[str, Any]:
        if topology.depth is Depth.COMPILE and compiler:
            return {"compiler": "libtpu 1.2"}
        if topology.depth is Depth.RUN and devices:
            return {"device_count": devices}
        raise WrongPlatformError("no device found" if topology.depth is Depth.RUN else "no compiler is installed")

    monkeypatch.setattr(depths, "_probe", probe)
    assert choose("cpu", "auto") == Chosen(Depth.RUN)
    assert choose("tpu", "lower") == Chosen(Depth.LOWER)
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.LOWER, False)
    assert chosen.why.startswith("no device found; no compiler is installed")
    for depth, words in (("run", "no device found"), ("compile", "no compiler is installed")):
        with pytest.raises(WrongPlatformError, match=words):
            choose("tpu", depth)
    with pytest.raises(WrongPlatformError, match="nothing says how programs of acme must look"):
        choose("acme", "lower")
    compiler = True
    chosen = choose("tpu", "auto")
    assert (chosen.depth, chosen.asked) == (Depth.COMPILE, False)
    devices = 4
    assert choose("tpu", "auto") == Chosen(Depth.RUN, why="4 devices of tpu found", device_count=4)


def test_the_ids_of_cells_name_the_depth() -> None:
    assert _depth_of([GOOD], "auto") is _depth_of([RUNNING], "lower") is Depth.LOWER
    assert _depth_of([RUNNING], "auto") is Depth.RUN
    for depth, cells in (("run", [GOOD]), ("auto", [GOOD, RUNNING]), ("compile", [GOOD])):
        with pytest.raises(ConflictingOptionsError, match="one run has one depth"):
            _depth_of(cells, depth)


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


@pytest.mark.parametrize(
    ("accepts", "platform", "count", "words"),
    [
        ((1, 4), "tpu", 1, "accepted an unknown custom-call target on 1 devices: it checks nothing"),
        ((4,), "tpu", 4, "accepted an operation with side effects and without a sharding"),
        ((4,), "cuda", 4, None),
        (None, "cuda", 1, "for another reason: RuntimeError: out of memory"),
    ],
)
def test_a_compiler_must_refuse_what_is_wrong(
    accepts: tuple[int, ...] | None, platform: str, count: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accepts` are the numbers of devices for which the compiler takes anything."""

    def compiled(devices: Any, function: Any) -> None:
        if accepts is None:
            raise RuntimeError("out of memory")
        if len(devices) not in accepts:
            raise RuntimeError("Custom emitter for conformance_no_such_target not found")

    monkeypatch.setattr(compile_only, "_compile", compiled)
    devices = jax.devices()[:count]
    if words is None:
        compile_only.check_controls(devices, TARGETS[platform])
        return
    with pytest.raises(WrongPlatformError, match=words):
        compile_only.check_controls(devices, TARGETS[platform])
