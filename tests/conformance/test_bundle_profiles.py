"""Profiles: which cells belong to one, and when a bundle earns it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bundle_fakes as fakes
import pytest

from conformance.bundles.archive import bundle_of
from conformance.bundles.earning import NAMED
from conformance.cli import commands
from conformance.engine import preparation
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Plan, make_plan
from conformance.planning.selection import Choice
from conformance.spec.capabilities import PROFILES, Shown, profiles_of, shown_by
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C45")


def shown(cell_id: str) -> Shown:
    found = shown_by(cell_id)
    assert found is not None
    return found


MISSING = Outcome(Verdict.MISSING, reason="planned and never run")


@pytest.mark.parametrize(
    ("cell", "profiles"),
    [
        (fakes.CORE, ("core",)),
        (fakes.ORDERED, ("ordered",)),
        (fakes.SHARDED, ("sharded",)),
        (fakes.ZERO_COPY, ("zero-copy",)),
        (fakes.CASE, ("zero-copy",)),
        (fakes.PROCESSES, ("multi-process",)),
        ("hostcb/io_callback/vmap.while_cond+int8-matrix-dict/cpu-1dev+x64", ("core",)),
        ("jax/io_and_debug_ordered/jit/cpu-1dev", ("ordered",)),
        ("hostcb/call/case.raises.pmap/cpu-8dev", ("ordered", "sharded")),
        ("hostcb/dlpack_callback/shard_map/tpu-4dev@compile", ("sharded", "zero-copy")),
        # One device of eight, and the half of two.
        ("hostcb/io_callback/pjit/cpu-8dev+last", ("core",)),
        ("hostcb/io_callback/pjit/cpu-2dev+part", ("core",)),
        # A callback that is placed on the last device of several.
        ("hostcb/io_callback_sharding/jit/cpu-8dev", ("sharded",)),
        ("hostcb/io_callback_sharding/jit/cpu-1dev", ("core",)),
        ("mine:REAL/io_callback_ordered/jit/cpu-1dev", ("ordered",)),
        ("mine/callback_of_a_vendor/jit/cpu-1dev", ()),
    ],
)
def test_the_profiles_of_a_cell(cell: str, profiles: tuple[str, ...]) -> None:
    assert profiles_of(shown(cell)) == profiles


# Earned or not ------------------------------------------------------------------------------------


def verified(tmp_path: Path, capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[int, dict[str, Any]]:
    """The exit code of `verify`, and what it says of each profile: by profile and implementation, at one depth."""
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle_of(fakes.write(tmp_path / "results", **arguments)).packed())
    code = commands.main(["verify", str(file), "--json"])
    claimed = json.loads(capsys.readouterr().out)["profiles"]
    return code, {f"{one['profile']} {one['implementation']} {one['depth']}": one for one in claimed}


def earned(claimed: Mapping[str, dict[str, Any]]) -> set[str]:
    return {name for name, one in claimed.items() if one["earned"]}


ALL = {f"{profile} hostcb run" for profile in PROFILES}


def test_whoever_passes_every_cell_earns_every_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, claimed = verified(tmp_path, capsys)
    assert (code, earned(claimed)) == (0, ALL | {"core jax run"})
    assert claimed["ordered jax run"]["reasons"] == ["the plan has no cell of it"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (fakes.failing(), f"1 of its 1 cells fail, the first is {fakes.CORE}: fail"),
        (fakes.failing(verdict=Verdict.FLAKE), "flake"),
        (MISSING, f"1 of its 1 cells did not run, the first is {fakes.CORE}"),
    ],
)
def test_one_cell_that_does_not_pass_costs_its_profile(
    outcome: Outcome, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, claimed = verified(tmp_path, capsys, outcomes={fakes.CORE: outcome})
    assert (code, earned(claimed)) == (0, ALL - {"core hostcb run"} | {"core jax run"})
    assert words in claimed["core hostcb run"]["reasons"][0]


def test_cells_that_were_named_earn_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fakes.changed(fakes.write(tmp_path / "r"), lambda results: results["run"].update(plan=None))
    assert commands.main(["bundle", str(folder)]) == 0
    capsys.readouterr()
    assert commands.main(["verify", str(folder / "bundle.zip")]) == 1
    assert f"core           hostcb          run    not earned: {NAMED}" in capsys.readouterr().out


def test_a_known_failure_of_a_program_costs_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, known = {fakes.OF_JAX: fakes.failing()}, fakes.KNOWN.format(cells="jax/*")
    code, claimed = verified(tmp_path, capsys, outcomes=outcomes, known=known)
    assert (code, earned(claimed)) == (0, ALL)
    assert (
        claimed["core jax run"]["reasons"][0] == f"1 of its 1 cells fail, the first is {fakes.OF_JAX}: fail at callback"
    )


def test_a_known_failure_of_a_fault_is_listed_and_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes, known = {fakes.CASE: fakes.failing()}, fakes.KNOWN.format(cells="*/case.keeps_its_view.*")
    _, claimed = verified(tmp_path, capsys, outcomes=outcomes, known=known)
    found = claimed["zero-copy hostcb run"]
    assert found["earned"]
    assert found["known_failures"] == {fakes.CASE: "It is planted. https://example.org/1"}
    commands.main(["verify", str(tmp_path / "bundle.zip")])
    text = capsys.readouterr().out
    assert "earned: 1 of 2 cells pass, with 1 known failures of cases" in text
    assert text.count(f"KNOWN: {fakes.CASE}: It is planted. https://example.org/1") == 1


def test_a_callback_that_is_not_offered_costs_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lacking = {"hostcb/io_callback/jit/cpu-1dev": "mine has no io_callback"}
    _, claimed = verified(tmp_path, capsys, lacking=lacking)
    assert claimed["core hostcb run"]["reasons"] == ["all cells of io_callback were left out: mine has no io_callback"]


@pytest.mark.parametrize("both", [True, False])
def test_refusals_alone_are_no_support(both: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that must be refused is as right as one that must be lowered, but not all of a callback are such."""
    cells = ["hostcb/buffer_callback/jit/tpu-1dev@lower", "hostcb/buffer_callback/vmap/tpu-1dev@lower"]
    folder = fakes.write(tmp_path / "r", cells=cells)
    fakes.changed(folder, lambda found: [one.update(shown="refused") for one in found["cells"][: 1 + both]])
    assert commands.main(["bundle", str(folder)]) == 0
    assert commands.main(["verify", str(folder / "bundle.zip")]) == int(both)
    assert ("not earned: all programs with buffer_callback were refused" in capsys.readouterr().out) is both


def test_a_problem_of_the_run_costs_all_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, claimed = verified(tmp_path, capsys, problems=["the run was interrupted"])
    assert (code, earned(claimed)) == (1, set())
    assert claimed["core hostcb run"]["reasons"] == ["the run had 1 problems, the first is: the run was interrupted"]


def test_each_depth_is_earned_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = "hostcb/pure_callback/jit/tpu-1dev@compile"
    cells = (compiled, "hostcb/pure_callback/jit/tpu-1dev@lower", "hostcb/pure_callback/jit/tpu-1dev")
    outcomes = {compiled: fakes.failing(Stage.COMPILE), cells[2]: MISSING}
    _, claimed = verified(tmp_path, capsys, cells=cells, outcomes=outcomes)
    assert earned(claimed) == {"core hostcb lower"}


@pytest.mark.parametrize(("planned", "code"), [(fakes.CELLS, 0), (fakes.CELLS[:-1], 2)])
def test_the_plan_can_be_made_again(
    planned: Iterable[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "planned_again", lambda options: [*planned])
    file = tmp_path / "bundle.zip"
    file.write_bytes(bundle_of(fakes.write(tmp_path / "results")).packed())
    assert commands.main(["verify", str(file), "--replan"]) == code
    captured = capsys.readouterr()
    assert "as this suite plans it" in captured.out if code == 0 else f"1 cells, like {fakes.OF_JAX}" in captured.err


def test_the_options_of_a_run_are_enough_to_plan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that only select: the plan of `--smoke` is the whole one."""

    def undrawn(implementations: Sequence[str], platform: str, devices: Sequence[int], choice: Choice) -> Plan:
        assert choice == Choice(7, full=False)
        return make_plan(implementations, [Topology(platform, count) for count in devices])

    monkeypatch.setattr(preparation.selecting, "whole_plan_of", undrawn)
    options = {"platform": "cpu", "devices": [1], "implementations": ["jax"], "seed": 7, "full": False, "smoke": True}
    options |= {"depth": "run", "usual_devices": False, "topologies": []}
    assert fakes.OF_JAX in preparation.planned_again(options)
