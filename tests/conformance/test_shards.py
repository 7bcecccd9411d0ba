"""Which cells a process or a machine runs, and when: cells that run alone, and shards, which joined are one run."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import suite_runs
from results_fakes import change
from suite_runs import ROOT, Capture, report_in
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
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import Plan, parse_cell
from conformance.spec.topology import Topology

ONE, EIGHT = Topology("cpu", 1), Topology("cpu", 8)
NAMES = ("pure_callback", "io_callback", "debug_callback", "debug_print", "io_callback_ordered")
CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in NAMES]


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
        found = [shard_of(of[::-1] if number % 2 else of, Shard(number, count)) for number in range(1, count + 1)]
        assert sorted(cell for shard in found for cell in shard) == sorted(task.id for task in of)
        cost = {task.id: estimate(task) for task in of}
        loads = [sum(cost[cell] for cell in shard) for shard in found]
        assert count > 8 or of is few or max(loads) < 1.1 * sum(loads) / count, loads


def prepared(results: Path, *arguments: str, cells: list[str] = CELLS) -> Run:
    options = ["run", "--results", str(results), "--expectations", os.devnull, *arguments]
    return preparation.prepare(RunOptions.of(commands.parsed([*options, *(f"--cell={cell}" for cell in cells)])))


@pytest.mark.contract("C40")
def test_an_empty_shard_is_no_failure_and_each_shard_judges_entries_by_the_whole_selection(tmp_path: Path) -> None:
    assert [cell.id for cell in prepared(tmp_path).cells] == CELLS
    (empty, *_) = (run for number in range(1, 9) if not (run := prepared(tmp_path, "--shard", f"{number}/8")).cells)
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
    assert [runs_exclusively(exclusive, one) for one in (None, known, replace(known, intermittent=True))] == [
        *(True, False, True)
    ]
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


# Shards joined: the same as one run of all cells; parts of different wholes are refused, and gaps are named.

INFO = {"jax": "0.12.0", "platform": "cpu", "device_count": 1, "cores": 2}
PASS, FAIL = Outcome(Verdict.PASS, seconds=0.5), Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: it", anomaly="lost")


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    """Writes the results of a shard, as if its cells had run."""

    def write(text: str, cells: list[str] = CELLS, folder: str = "", **outcomes: Outcome) -> Path:
        results = tmp_path / (folder or text.replace("/", "-of-"))
        results.mkdir()
        run = prepared(results, "--shard", text, cells=cells)
        for cell in run.cells:
            run._report.add(cell, outcomes.get(cell.callback_name, PASS))
        run._report.run_info = {"cpu-1dev": dict(INFO)}
        run._report.seconds, run._report.process_starts = 3.0, 1
        run._report.write(results / "conformance-cpu.json")
        lines = [{"event": "header"}, *({"event": "end", "cell": cell.id} for cell in run.cells), {"event": "finished"}]
        (results / "journal-cpu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
        return results

    return write


def merge(out: Path, *folders: Path) -> int:
    return commands.main(["merge", *map(str, folders), "--results", str(out)])


def refusal(capsys: Capture, out: Path, *folders: Path) -> str:
    assert merge(out, *folders) == 2
    assert not (out / "conformance-cpu.json").exists()
    return capsys.readouterr().err


@pytest.mark.contract("C41")
def test_all_shards_are_one_run(shard: Any, tmp_path: Path, capsys: Capture) -> None:
    out, folders = tmp_path / "out", {}
    for number in (3, 1, 2):
        folders[number] = shard(f"{number}/3", debug_print=FAIL, folder=f"my {number}")
        change(folders[number], run=report_in(folders[number])["run"] | {"command": f"run {number}"})
    assert merge(out, *folders.values()) == 1
    data = report_in(out)
    assert [cell["id"] for cell in data["cells"]] == CELLS
    assert (data["seconds"], data["process_starts"], data["problems"], data["exit_code"]) == (3.0, 3, [], 1)
    assert [one["shard"] for one in data["merged"]] == [1, 2, 3]
    assert data["run_info"] == {"cpu-1dev": INFO}
    # Its command runs every shard, though one fails.
    named = " ".join(f"'{folders[number]}'" for number in (1, 2, 3))
    made = f"run 1; run 2; run 3; python -m conformance merge {named} --results OUT"
    assert data["run"]["command"] == made
    assert sorted(event["cell"] for event in suite_runs.journal_in(out, "end")) == sorted(CELLS)
    # It is what one run would have written.
    whole = shard("1/1", debug_print=FAIL, folder="whole")
    assert commands.main(["diff", str(whole), str(out)]) == 0
    assert "is merged already" in refusal(capsys, tmp_path / "again", out)


@pytest.mark.contract("C41")
def test_what_is_missing_and_problems_are_named(shard: Any, tmp_path: Path) -> None:
    """A shard, cells of a shard, and a stale entry, which is one of the whole."""
    words = "the expectation 'gone' matches no planned cell"
    first, third = shard("1/3"), shard("3/3", io_callback=Outcome(Verdict.MISSING, reason="planned and never run"))
    interrupted = ["the run was interrupted", "cpu-1dev: hang", words]
    change(first, problems=interrupted, gaps=interrupted[:1], stale_expectations=["gone"])
    change(third, problems=[words], stale_expectations=["gone"])
    assert merge(tmp_path / "out", first, third) == 1
    data = report_in(tmp_path / "out")
    ran = {cell["id"] for folder in (first, third) for cell in report_in(folder)["cells"]}
    (missing,) = (cell for cell in CELLS if cell not in ran)
    assert [cell["id"] for cell in data["cells"]] == CELLS
    records = {cell["id"] for cell in data["cells"] if cell["verdict"] == "missing"}
    named = {f"shard 2/3 missing: 1 cell: {missing}", "shard 1/3: the run was interrupted"}
    named |= {f"shard 3/3 has not run 1 cell: {cell}" for cell in records - {missing}}
    assert missing in records and {*data["gaps"]} == named
    assert {*data["problems"]} == named | {"shard 1/3: cpu-1dev: hang", words}
    assert (data["stale_expectations"], data["exit_code"]) == (["gone"], 1)
    # An entry that one shard alone does not use is none.
    change(third, problems=[], stale_expectations=[])
    merge(tmp_path / "again", first, third)
    assert report_in(tmp_path / "again")["stale_expectations"] == []


@pytest.mark.contract("C41")
def test_parts_of_different_wholes_are_refused(shard: Any, tmp_path: Path, capsys: Capture) -> None:
    first, second, out = shard("1/2"), shard("2/2"), tmp_path / "out"
    before = report_in(second)
    fields: dict[str, dict[str, Any]] = {
        "the versions of jax are": {"versions": {"jax": "0.4.31"}},
        "the option repeat are": {"options": {"repeat": 7}},
        "with cpu-1dev, jax is 0.12.0 and 0.10.2": {"run_info": {"cpu-1dev": INFO | {"jax": "0.10.2"}}},
        "the plugins are {} and {'acme': '2.3.1'}": {"run": before["run"] | {"plugins": {"acme": "2.3.1"}}},
        "is in": {"cells": report_in(first)["cells"]},
    }
    for words, changed in fields.items():
        assert words in refusal(capsys, out, first, change(second, **before | changed))
    change(second, **before)
    for words, folders in {
        "shard 1/2 is there twice": (first, first, second),
        "the selections have cells: 5 and 3": (first, shard("2/2", cells=CELLS[:3], folder="other")),
        "they are shards of 2 and 3": (first, shard("3/3")),
        "holds no conformance-PLATFORM.json": (first, tmp_path),
    }.items():
        assert words in refusal(capsys, out, *folders)


# Clusters: an array of jobs of Slurm, and Dask.


@pytest.mark.contract("C40")
@pytest.mark.thorough
def test_an_array_of_slurm_runs_its_shards_and_joins_them(tmp_path: Path) -> None:
    # Arrays may begin anywhere.
    own = {"SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_COUNT": "2"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = ["-n", "1", "--expectations", os.devnull, *suite_runs.cells("suite_fakes:GOOD", "id_tap", "call")]
    for arguments, task in ((run, "4"), (run, "5"), (["--merge"], "")):
        command = ("bash", ROOT / "ci" / "matrix" / "slurm.sh", *arguments)
        ended = suite_runs.ran(tmp_path, *command, **own, SLURM_ARRAY_TASK_ID=task)
        assert ended.returncode == 0, ended.stderr
    assert "2 of 2 cells passed" in ended.stdout


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
def test_a_dask_worker_with_other_versions_is_refused_and_a_missing_shard_runs_with_resume(tmp_path: Path) -> None:
    command = command_of(RunOptions(cells=(CELLS[0],)))
    check_versions(command)
    with pytest.raises(ShardError, match=r"jax is .* there and 0\.4\.1 here$"):
        check_versions(replace(command, versions={**command.versions, "jax": "0.4.1"}))
    folder = tmp_path / "shards"
    folder.mkdir()

    def ran(resume: bool, failing: str = "") -> tuple[list[str], list[str]]:
        cluster = Cluster(failing)
        options = RunOptions(results=tmp_path, spread="tcp://nowhere:1", resume=resume)
        return [*Shards(options, folder, cluster).run()], cluster.asked  # type: ignore[arg-type]

    assert ran(False, "2/2") == (["shard 2/2: Dask workers were lost"], ["1/2", "2/2"])
    assert ran(True) == ([], ["2/2"])
    assert len(ran(False, "1/2")[0]) == 1
    assert [one.name for one in folder.iterdir()] == ["2-of-2"], "without --resume the old ones are gone"


@pytest.mark.contract("C44")
@requirements.DASK
@pytest.mark.thorough
def test_a_lost_worker_costs_no_cell(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it, once. The cells and the known failures are in files."""
    chosen = suite_runs.cells("suite_fakes:KILLS_DASK", "call")
    chosen += suite_runs.cells("suite_fakes:GOOD", "id_tap", "call", "call_no_result")
    names = [option.partition("=")[2] for option in chosen]
    (tmp_path / "plan.txt").write_text("\n".join(names))
    asked = ["--results", "results", "--expectations", os.devnull, "--cell=@plan.txt"]
    ended = suite_runs.ran(tmp_path, sys.executable, ROOT / "tests" / "programs" / "dask_run.py", *asked)
    assert ended.stdout.splitlines()[-1:] == ["0"], ended.stdout + ended.stderr
    report = report_in(tmp_path / "results")
    assert suite_runs.verdicts(report) == dict.fromkeys(names, "pass")
    assert (report["problems"], report["run_info"].keys()) == ([], {"cpu-1dev"})
