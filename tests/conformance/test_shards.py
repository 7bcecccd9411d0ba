"""Which cells a process or a machine runs, and when: shards, first cells and cells that run alone."""

from __future__ import annotations

import fcntl
import fnmatch
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.first_cells import FIRST_CELLS, kills_in, place_of
from conformance.engine.machines.shards import PROCESS_START, estimate, shard_of
from conformance.engine.options import IMPLEMENTATIONS, RESULTS, SELECTION, RunOptions, Shard
from conformance.engine.preparation import FullResultsError, planned, refuse_full_results
from conformance.engine.pytest_cells.exclusive import CELLS as CELLS_LOCK
from conformance.engine.pytest_cells.exclusive import Turns, runs_exclusively
from conformance.engine.run import Run, task_of
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectation, Expectations
from conformance.mutants import MUTANTS
from conformance.mutants.ranking import ranked
from conformance.planning.cells import Plan, parse_cell
from conformance.spec.topology import Topology

ONE, EIGHT = Topology("cpu", 1), Topology("cpu", 8)

# Shards.


def tasks(count: int, topology: Topology = ONE, isolated: int = 0) -> list[Task]:
    """Cells of two implementations; the first ones are isolated."""
    return [
        Task(f"{name}/call/p{number}/{topology.name}", name, topology, 60.0, isolated=number < isolated)
        for name in ("hostcb", "jax")
        for number in range(count)
    ]


@pytest.mark.contract("C40")
@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
def test_each_cell_is_in_one_shard_and_shards_take_as_long_as_each_other(count: int) -> None:
    few = [*tasks(10, isolated=3), *tasks(7, EIGHT)]
    many = [*tasks(300, isolated=20), *tasks(300, EIGHT)]
    for of in (few, many):
        found = [shard_of(of, Shard(number, count)) for number in range(1, count + 1)]
        assert sorted(cell for shard in found for cell in shard) == sorted(task.id for task in of)
    cost = {task.id: estimate(task) + PROCESS_START * task.isolated for task in many}
    loads = [sum(cost[cell] for cell in shard) for shard in found]
    assert count > 8 or max(loads) < 1.1 * sum(loads) / count, loads
    # One kind of worker starts in most shards, where a fair draw would start all four in each.
    shared = [*tasks(200), *tasks(200, EIGHT)]
    kind_of = {task.id: task.kind for task in shared}
    kinds = [{kind_of[cell] for cell in shard_of(shared, Shard(number, count))} for number in range(1, count + 1)]
    assert sum(map(len, kinds)) <= 4 + count - 1


CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in ("pure_callback", "io_callback", "debug_callback")]


def prepared(tmp_path: Path, *arguments: str) -> Any:
    known = tmp_path / "none.toml"
    known.touch()
    cells = [f"--cell={cell}" for cell in CELLS]
    options = ["run", "--results", str(tmp_path / "results"), "--expectations", str(known), *cells, *arguments]
    return preparation.prepare(RunOptions.of(commands.parsed(options)))


@pytest.mark.contract("C40")
def test_a_run_has_the_cells_of_its_shard_and_says_which(tmp_path: Path) -> None:
    whole = prepared(tmp_path)
    assert [cell.id for cell in whole.cells] == CELLS
    assert "shard" not in whole._report.as_json()
    runs = [prepared(tmp_path, "--shard", f"{number}/4") for number in range(1, 5)]
    assert sorted(cell.id for run in runs for cell in run.cells) == sorted(CELLS)
    data = runs[1]._report.as_json()
    assert data["shard"] == {"number": 2, "of": 4}
    assert (data["selection"]["count"], list(data["selection"]["cells"])) == (3, CELLS)
    assert data["versions"].keys() >= {"jax", "jaxlib", "suite"}
    # An empty shard is no failure.
    (empty,) = (run for run in runs if not run.cells)
    (tmp_path / "results").mkdir()
    assert empty.finish(None).exit_code == 0


@pytest.mark.contract("C40")
def test_an_entry_for_a_cell_of_another_shard_is_not_stale(tmp_path: Path) -> None:
    """Each shard judges entries by the whole selection."""
    outside = "engine_is_no_plan"
    cells = tuple(map(parse_cell, CELLS))
    entries = (Expectation((glob,), "fail", "planted", "none", "2026-01-01") for glob in (CELLS[2], outside))
    options = RunOptions(results=tmp_path, depth="run", shard=Shard(1, 3))
    run = Run(Plan((), ()), Plan(cells[:1], ()), Expectations(tuple(entries)), options, "0.12.0", cells)
    assert run._report.stale_expectations == (outside,)


# First cells, and cells that run alone.


@pytest.fixture(scope="module")
def usual() -> list[Task]:
    """The cells of the default run."""
    options = RunOptions(devices=(1, 2, 4, 8), usual_devices=True, depth="run", implementations=IMPLEMENTATIONS)
    return [task_of(cell, 60.0) for cell in planned(options).on_this_release().cells]


@pytest.mark.contract("C66")
def test_the_first_cells_are_planned_and_must_kill_their_mutants(usual: list[Task]) -> None:
    globs, cells = {mutant.name: mutant.cells for mutant in MUTANTS}, {task.id for task in usual}
    kills = kills_in(FIRST_CELLS.read_text())
    killed = {mutant for of_cell in kills.values() for mutant in of_cell}
    assert len(killed) >= 0.95 * len(globs), globs.keys() - killed
    for cell, mutants in kills.items():
        assert f"hostcb/{cell}" in cells
        for name in mutants:
            assert any(fnmatch.fnmatchcase(cell, glob) for glob in globs[name]), f"{name}: renew the file"
    found = {"a": {"x", "slow"}, "b": {"x", "slow"}, "c": {"y"}, "d": {"slow", "x"}}
    # A greedy cover that prefers quick cells.
    assert ranked(found, {"x": 1.0, "slow": 9.0, "y": 1.0}) == [("x", ["a", "b", "d"]), ("y", ["c"])]


@pytest.mark.contract("C66")
@pytest.mark.parametrize("processes", [1, 3])
def test_each_process_begins_with_its_part_of_them(usual: list[Task], processes: int) -> None:
    ordered = in_running_order(usual, processes)
    assert sorted(task.id for task in ordered) == sorted(task.id for task in usual)
    first = len(kills_in(FIRST_CELLS.read_text()))
    part = len(usual) // processes
    begun = {task.id for place in range(processes) for task in ordered[place * part :][: first // processes + 1]}
    assert {task.id for task in usual if place_of(task.id) is not None} <= begun


@pytest.mark.contract("C4")
def test_slow_cells_are_first_and_each_kind_of_worker_starts_once() -> None:
    slow = [
        Task(f"{name} case", "hostcb", ONE, deadline, isolated=True) for name, deadline in (("a", 10.0), ("b", 60.0))
    ]
    others = [Task(name, "hostcb", topology, 60.0) for name, topology in (("c", ONE), ("d", EIGHT), ("e", ONE))]
    assert [task.id for task in in_running_order([*others, *slow])] == ["b case", "a case", "c", "e", "d"]
    # Each of two processes begins with slow cells.
    assert [task.id for task in in_running_order([*others, *slow], 2)] == ["b case", "c", "a case", "e", "d"]


@pytest.mark.contract("C65")
def test_a_quiet_cell_runs_alone_and_others_together(usual: list[Task], tmp_path: Path) -> None:
    """Nobody waits for a quiet cell that is known to hang."""
    exclusive, *_ = (task for task in usual if task.exclusive)
    known = Expectation((exclusive.id,), "hang", "it waits", "a link", "2026-11-25")
    assert runs_exclusively(exclusive, None)
    assert not runs_exclusively(exclusive, known)
    assert runs_exclusively(exclusive, replace(known, intermittent=True)), "it may end"
    assert runs_exclusively(exclusive, replace(known, verdict="fail"))
    assert not runs_exclusively(replace(exclusive, exclusive=False), None)
    turns = Turns(tmp_path)

    def is_free(lock: int) -> bool:
        """Whether a cell of another process may begin."""
        with (tmp_path / CELLS_LOCK).open("ab") as cells:
            try:
                fcntl.flock(cells, lock | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    with turns.turn(exclusive=False):
        assert is_free(fcntl.LOCK_SH) and not is_free(fcntl.LOCK_EX)
    with turns.turn(exclusive=True):
        assert not is_free(fcntl.LOCK_SH)
    assert is_free(fcntl.LOCK_EX)
    turns.close()


# The folder of chosen cells.


@pytest.mark.contract("C43")
def test_chosen_cells_have_a_folder_of_their_own_and_replace_no_full_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder_of(*arguments: str) -> Path:
        return RunOptions.of(commands.parsed(["run", *arguments])).results

    for chosen in (("--cell", CELLS[0]), ("-k", "id_tap"), ("--cell", "@plan.txt"), ("--smoke",), ("--", "--lf")):
        assert folder_of(*chosen) == folder_of("--resume", *chosen) == SELECTION
        assert folder_of("--results", "results", *chosen) == Path("results")
    for whole in ((), ("--implementation", "jax"), ("--resume",), ("--", "-x")):
        assert folder_of(*whole) == RESULTS

    full: dict[str, Any] = {"cells": [], "patterns": [], "smoke": False, "topologies": []}
    some = RunOptions(results=tmp_path, depth="run", cells=(CELLS[0],))
    file = tmp_path / "conformance-cpu.json"
    for options in ({"cells": CELLS}, {"patterns": ["call"]}, {"smoke": True}):
        file.write_text(json.dumps({"run": {"options": full | options}}))
        refuse_full_results(some)
    before = json.dumps({"run": {"options": full | {"implementations": ["hostcb", "jax"]}}})
    file.write_text(before)
    refuse_full_results(RunOptions(results=tmp_path))
    refuse_full_results(replace(some, platform="tpu"))
    with pytest.raises(FullResultsError, match="name another folder"):
        refuse_full_results(some)
    assert commands.main(["run", "--cell", CELLS[0], "--results", str(tmp_path)]) == 2
    assert f"ERROR: {tmp_path} has the results of a full run" in capsys.readouterr().err
    assert file.read_text() == before
