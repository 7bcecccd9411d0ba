"""Which cells a process or a machine runs, and when: shards, first cells, cells that run alone, and clusters."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import suite_runs
from suite_runs import ROOT, Capture
from support import requirements

from conformance.cli import commands
from conformance.cli.dask_shards import Shards, command_of
from conformance.engine import preparation
from conformance.engine.machines.dask_worker import ShardError, check_versions
from conformance.engine.machines.shards import estimate, shard_of
from conformance.engine.options import RESULTS, SELECTION, RunOptions, Shard
from conformance.engine.pytest_cells.exclusive import CELLS as CELLS_LOCK
from conformance.engine.pytest_cells.exclusive import Turns, runs_exclusively
from conformance.engine.run import Run
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectation, Expectations
from conformance.planning.cells import Plan, parse_cell
from conformance.spec.topology import Topology

ONE, EIGHT = Topology("cpu", 1), Topology("cpu", 8)
CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in ("pure_callback", "io_callback", "debug_callback")]

# Shards.


def tasks(count: int, topology: Topology = ONE, isolated: int = 0) -> list[Task]:
    """Cells of two implementations; the first ones are isolated."""
    return [
        Task(f"{name}/call/p{number}/{topology.name}", name, topology, 60.0, isolated=number < isolated)
        for name in ("hostcb", "jax")
        for number in range(count)
    ]


@pytest.mark.contract("C40")
@pytest.mark.parametrize("count", [1, 3, 40])
def test_each_cell_is_in_one_shard_and_shards_take_as_long_as_each_other(count: int) -> None:
    few, many = [*tasks(10, isolated=3), *tasks(7, EIGHT)], [*tasks(300, isolated=20), *tasks(300, EIGHT)]
    for of in (few, many):
        found = [shard_of(of, Shard(number, count)) for number in range(1, count + 1)]
        assert sorted(cell for shard in found for cell in shard) == sorted(task.id for task in of)
        cost = {task.id: estimate(task) for task in of}
        loads = [sum(cost[cell] for cell in shard) for shard in found]
        assert count > 8 or of is few or max(loads) < 1.1 * sum(loads) / count, loads


@pytest.mark.contract("C40")
def test_an_empty_shard_is_no_failure_and_each_shard_judges_entries_by_the_whole_selection(tmp_path: Path) -> None:
    def prepared(*arguments: str) -> Any:
        options = ["run", "--results", str(tmp_path), "--expectations", os.devnull, *arguments]
        return preparation.prepare(RunOptions.of(commands.parsed([*options, *(f"--cell={cell}" for cell in CELLS)])))

    assert [cell.id for cell in prepared().cells] == CELLS and "shard" not in prepared()._report.as_json()
    (empty,) = (run for number in range(1, 5) if not (run := prepared("--shard", f"{number}/4")).cells)
    assert empty.finish(None).exit_code == 0
    cells = tuple(map(parse_cell, CELLS))
    entries = (Expectation((glob,), "fail", "planted", "none", "2026-01-01") for glob in (CELLS[2], "gone"))
    options = RunOptions(results=tmp_path, depth="run", shard=Shard(1, 3))
    run = Run(Plan((), ()), Plan(cells[:1], ()), Expectations(tuple(entries)), options, "0.12.0", cells)
    assert run._report.stale_expectations == ("gone",)


# Slow cells, and cells that run alone.


@pytest.mark.contract("C4")
def test_slow_cells_are_first_and_each_kind_of_worker_starts_once() -> None:
    slow = [Task(f"{name} case", "hostcb", ONE, deadline, isolated=True) for name, deadline in (("a", 10), ("b", 60))]
    others = [Task(name, "hostcb", topology, 60.0) for name, topology in (("c", ONE), ("d", EIGHT), ("e", ONE))]
    assert [task.id for task in in_running_order([*others, *slow])] == ["b case", "a case", "c", "e", "d"]


@pytest.mark.contract("C65")
def test_a_quiet_cell_runs_alone_and_others_together(tmp_path: Path) -> None:
    """Nobody waits for a quiet cell that is known to hang."""
    exclusive = replace(tasks(1)[0], exclusive=True)
    known = Expectation((exclusive.id,), "hang", "it waits", "a link", "2026-11-25")
    assert runs_exclusively(exclusive, None)
    assert not runs_exclusively(exclusive, known)
    assert runs_exclusively(exclusive, replace(known, intermittent=True)), "it may end"
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
def test_chosen_cells_have_a_folder_of_their_own_and_replace_no_full_run(tmp_path: Path, capsys: Capture) -> None:
    def folder_of(*arguments: str) -> Path:
        return RunOptions.of(commands.parsed(["run", *arguments])).results

    for chosen in (("--cell", CELLS[0]), ("-k", "id_tap"), ("--smoke",), ("--", "--lf")):
        assert folder_of(*chosen) == SELECTION
    assert folder_of() == folder_of("--", "-x") == RESULTS
    full: dict[str, Any] = {"cells": [], "patterns": [], "smoke": False, "topologies": []}
    file = tmp_path / "conformance-cpu.json"
    before = json.dumps({"run": {"options": full | {"implementations": ["hostcb", "jax"]}}})
    file.write_text(before)
    assert commands.main(["run", "--cell", CELLS[0], "--results", str(tmp_path)]) == 2
    assert f"ERROR: {tmp_path} has the results of a full run" in capsys.readouterr().err
    assert file.read_text() == before


# Clusters: an array of jobs of Slurm, and Dask.


@pytest.mark.contract("C40")
@pytest.mark.thorough
def test_an_array_of_slurm_runs_its_shards_and_joins_them(tmp_path: Path) -> None:
    # Arrays may begin anywhere.
    own = {"SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_COUNT": "2"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = ["-n", "1", "--expectations", os.devnull, *suite_runs.cells("implementation_fakes:GOOD", "id_tap", "call")]
    for arguments, task in ((run, "4"), (run, "5"), (["--merge"], "")):
        command = ("bash", ROOT / "ci" / "matrix" / "slurm.sh", *arguments)
        ended = suite_runs.ran(tmp_path, *command, **own, SLURM_ARRAY_TASK_ID=task)
        assert ended.returncode == 0, ended.stderr
    assert "2 of 2 cells passed" in ended.stdout


@pytest.mark.contract("C44")
def test_a_dask_worker_with_other_versions_is_refused() -> None:
    command = command_of(RunOptions(cells=(CELLS[0],)))
    check_versions(command)
    with pytest.raises(ShardError, match=r"jax is .* there and 0\.4\.1 here$"):
        check_versions(replace(command, versions={**command.versions, "jax": "0.4.1"}))


class Cluster:
    """A cluster on which one shard fails; it notes which shards it was asked for."""

    workers, stopped = 1, False

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.asked: list[str] = []

    def files_of(self, shard: str) -> dict[str, str]:
        self.asked.append(shard)
        if shard == self.failing:
            raise ShardError("Dask workers were lost")
        return {"conformance-cpu.json": "{}"}

    def stop(self) -> None: ...


@pytest.mark.contract("C44")
def test_a_shard_that_is_missing_runs_with_resume(tmp_path: Path) -> None:
    options = RunOptions(results=tmp_path, spread="tcp://nowhere:1")
    folder = tmp_path / "shards"
    folder.mkdir()

    def ran(resume: bool, failing: str = "") -> tuple[list[str], list[str]]:
        cluster = Cluster(failing)
        problems = Shards(replace(options, resume=resume), folder, cluster).run()  # type: ignore[arg-type]
        return [*problems], cluster.asked

    assert ran(False, "2/2") == (["shard 2/2: Dask workers were lost"], ["1/2", "2/2"])
    assert ran(True) == ([], ["2/2"])
    assert len(ran(False, "1/2")[0]) == 1
    assert [one.name for one in folder.iterdir()] == ["2-of-2"], "without --resume the old ones are gone"


@pytest.mark.contract("C44")
@requirements.DASK
@pytest.mark.thorough
def test_a_lost_worker_costs_no_cell(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it, once. The cells and the known failures are in files."""
    chosen = suite_runs.cells("engine_fakes:KILLS_DASK", "call")
    chosen += suite_runs.cells("implementation_fakes:GOOD", "id_tap", "call", "call_no_result")
    names = [option.partition("=")[2] for option in chosen]
    (tmp_path / "plan.txt").write_text("\n".join(names))
    asked = ["--results", "results", "--expectations", os.devnull, "--cell=@plan.txt"]
    ended = suite_runs.ran(tmp_path, sys.executable, ROOT / "tests" / "programs" / "dask_run.py", *asked)
    assert ended.stdout.splitlines()[-1:] == ["0"], ended.stdout + ended.stderr
    report = suite_runs.report_in(tmp_path / "results")
    assert suite_runs.verdicts(report) == dict.fromkeys(names, "pass")
    assert (report["problems"], report["run_info"].keys()) == ([], {"cpu-1dev"})
