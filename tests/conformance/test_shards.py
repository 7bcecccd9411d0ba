"""Which cells a process or a machine runs, and when: shards, first cells, cells that run alone, and clusters."""

from __future__ import annotations

import fcntl
import fnmatch
import importlib.util
import json
import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import suite_runs
from suite_runs import ROOT, Capture, Patch
from support import requirements

from conformance.cli import commands, dask_shards
from conformance.cli.dask_shards import Shards, command_of
from conformance.engine import preparation
from conformance.engine.first_cells import FIRST_CELLS, kills_in, place_of
from conformance.engine.machines.dask_worker import ShardError, check_versions
from conformance.engine.machines.shards import estimate, shard_of
from conformance.engine.options import IMPLEMENTATIONS, RESULTS, SELECTION, RunOptions, Shard
from conformance.engine.preparation import planned, refuse_full_results
from conformance.engine.pytest_cells.exclusive import CELLS as CELLS_LOCK
from conformance.engine.pytest_cells.exclusive import Turns, runs_exclusively
from conformance.engine.run import Run, task_of
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectation, Expectations
from conformance.mutants import MUTANTS
from conformance.mutants.ranking import ranked
from conformance.planning.cells import Plan, parse_cell
from conformance.spec.errors import CommandError
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
@pytest.mark.parametrize("count", [1, 3, 8, 40])
def test_each_cell_is_in_one_shard_and_shards_take_as_long_as_each_other(count: int) -> None:
    few, many = [*tasks(10, isolated=3), *tasks(7, EIGHT)], [*tasks(300, isolated=20), *tasks(300, EIGHT)]
    # One kind of worker starts in most shards, where a fair draw would start all four in each.
    shared = [*tasks(200), *tasks(200, EIGHT)]
    for of in (few, many, shared):
        found = [shard_of(of, Shard(number, count)) for number in range(1, count + 1)]
        assert sorted(cell for shard in found for cell in shard) == sorted(task.id for task in of)
        cost = {task.id: estimate(task) for task in of}
        loads = [sum(cost[cell] for cell in shard) for shard in found]
        assert count > 8 or of is few or max(loads) < 1.1 * sum(loads) / count, loads
    kind_of = {task.id: task.kind for task in shared}
    assert sum(len({kind_of[cell] for cell in shard}) for shard in found) <= 4 + count - 1


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


# First cells, and cells that run alone.


@pytest.fixture(scope="module")
def usual() -> list[Task]:
    """The cells of the default run."""
    options = RunOptions(devices=(1, 2, 4, 8), usual_devices=True, depth="run", implementations=IMPLEMENTATIONS)
    return [task_of(cell, 60.0) for cell in planned(options).on_this_release().cells]


@pytest.mark.contract("C66")
def test_each_process_begins_with_planned_cells_that_must_kill_mutants(usual: list[Task]) -> None:
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
    for processes in (1, 3):
        ordered = in_running_order(usual, processes)
        assert sorted(task.id for task in ordered) == sorted(cells)
        part = len(usual) // processes
        parts = (ordered[place * part :][: len(kills) // processes + 1] for place in range(processes))
        begun = {task.id for own in parts for task in own}
        assert {cell for cell in cells if place_of(cell) is not None} <= begun


@pytest.mark.contract("C4")
def test_slow_cells_are_first_and_each_kind_of_worker_starts_once() -> None:
    slow = [Task(f"{name} case", "hostcb", ONE, deadline, isolated=True) for name, deadline in (("a", 10), ("b", 60))]
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
def test_chosen_cells_have_a_folder_of_their_own_and_replace_no_full_run(tmp_path: Path, capsys: Capture) -> None:
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
    with pytest.raises(CommandError, match="name another folder"):
        refuse_full_results(some)
    assert commands.main(["run", "--cell", CELLS[0], "--results", str(tmp_path)]) == 2
    assert f"ERROR: {tmp_path} has the results of a full run" in capsys.readouterr().err
    assert file.read_text() == before


# Clusters: an array of jobs of Slurm, and Dask.

ALONE = ("-n", "1", "--expectations", os.devnull)


@pytest.mark.contract("C40")
@pytest.mark.thorough
def test_an_array_of_slurm_runs_its_shards_and_joins_them(tmp_path: Path) -> None:
    # Arrays may begin anywhere.
    own = {"SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_COUNT": "2"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def job(*arguments: str, **more: str) -> str:
        ended = suite_runs.ran(tmp_path, "bash", ROOT / "ci" / "matrix" / "slurm.sh", *arguments, **own, **more)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    cells = suite_runs.cells("implementation_fakes:GOOD", "id_tap", "call")
    for task in ("4", "5"):
        job(*ALONE, *cells, SLURM_ARRAY_TASK_ID=task)
    assert "2 of 2 cells passed" in job("--merge")
    assert (tmp_path / "results" / "page.html").exists()
    # What a machine leaves that stopped before the end: the job is put into the queue again, and goes on.
    shard = tmp_path / "shards" / "shard-1"
    (shard / "conformance-cpu.json").unlink()
    journal = shard / "journal-cpu.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"finished"' not in line))
    job(*ALONE, *cells, SLURM_ARRAY_TASK_ID="4")
    assert suite_runs.report_in(shard)["exit_code"] == 0


@pytest.mark.contract("C44")
@requirements.DASK
def test_a_cluster_that_is_not_there_is_an_error(capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
    """A scheduler that does not answer, a worker with other versions, and a missing package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_shards, "CONNECT_SECONDS", 0.2)
    asked = ["run", "--cell", CELLS[0], "--spread", "tcp://127.0.0.1:1"]
    assert commands.main(asked) == 2
    assert "ERROR: --spread: no Dask scheduler answers at tcp://127.0.0.1:1: " in capsys.readouterr().err
    assert not [*tmp_path.rglob("conformance-*")]
    command = command_of(RunOptions(cells=(CELLS[0],)))
    check_versions(command)
    with pytest.raises(ShardError, match=r"jax is .* there and 0\.4\.1 here$"):
        check_versions(replace(command, versions={**command.versions, "jax": "0.4.1"}))
    options = RunOptions(devices=(1, 8), shard=Shard(2, 3), patterns=("id_tap",), pytest_options=("-x",))
    assert RunOptions.from_json(json.loads(json.dumps(options.as_json()))) == options
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "distributed" else found(name))
    assert commands.main(asked) == 2
    assert "pip install 'hostcb-conformance[distributed]'" in capsys.readouterr().err


class Cluster:
    """A cluster on which one shard fails; it notes which shards it was asked for."""

    workers = 1
    stopped = False

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
    folder = tmp_path / "shards"
    folder.mkdir()
    options = RunOptions(results=tmp_path, spread="tcp://nowhere:1")
    first, second, third = Cluster(failing="2/2"), Cluster(), Cluster(failing="1/2")
    assert Shards(options, folder, first).run() == ["shard 2/2: Dask workers were lost"]  # type: ignore[arg-type]
    assert first.asked == ["1/2", "2/2"]
    assert Shards(replace(options, resume=True), folder, second).run() == []  # type: ignore[arg-type]
    assert second.asked == ["2/2"]
    assert len(Shards(options, folder, third).run()) == 1  # type: ignore[arg-type]
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


@pytest.mark.contract("C44")
@requirements.DASK
@pytest.mark.thorough
@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupted_run_frees_the_workers(tmp_path: Path) -> None:
    """The only cell blocks, in one of two shards; the other one has no cell, and may have ended before or not."""
    os.mkfifo(tmp_path / "blocked")
    cluster = suite_runs.started(tmp_path, sys.executable, ROOT / "tests" / "programs" / "dask_cluster.py", 1)
    assert cluster.stdin is not None and cluster.stdout is not None
    cell = ["--cell=engine_fakes:BLOCKS_IN_PIPE/call/eager/cpu-1dev", "--expectations", os.devnull]
    run = suite_runs.start(tmp_path, *cell, "--spread", cluster.stdout.readline().strip())
    try:
        # Opening a pipe waits until the other end is open, too.
        with (tmp_path / "blocked").open() as blocked:
            assert blocked.readline() == "blocked\n"
            run.send_signal(signal.SIGINT)
            printed = "".join(run.communicate(timeout=60))
            # What held the other end has ended.
            assert select.select([blocked], [], [], 60)[0]
            assert blocked.read() == ""
        assert run.returncode in (1, 2), printed
        assert ": the run was interrupted" in printed
        print(file=cluster.stdin, flush=True)
        assert cluster.stdout.readline() == "0\n", "a worker still has a task"
    finally:
        run.kill()
        cluster.kill()
        cluster.communicate()
