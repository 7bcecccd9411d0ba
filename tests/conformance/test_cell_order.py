"""What runs first, and what runs alone: cells that kill mutants, and cells that need a quiet machine."""

from __future__ import annotations

import fnmatch
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cases.harness.catalogue import all_cases
from conformance.cli.commands import main
from conformance.engine.first_cells import FIRST_CELLS, kills_in, place_of
from conformance.engine.options import IMPLEMENTATIONS, RunOptions
from conformance.engine.preparation import planned
from conformance.engine.pytest_cells.exclusive import Turns, runs_exclusively
from conformance.engine.run import task_of
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectation
from conformance.mutants import MUTANTS
from conformance.mutants.ranking import NoMatrixError, ranked, ranking_of
from conformance.spec.topology import Topology

ONE = Topology("cpu", 1)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Those of the default run."""
    options = RunOptions(devices=(1, 2, 4, 8), usual_devices=True, depth="run", implementations=IMPLEMENTATIONS)
    plan = planned(options)
    return [task_of(cell, 60.0) for cell in plan.on_this_release().cells]


@pytest.mark.contract("C66")
def test_the_first_cells_kill_nearly_all_mutants() -> None:
    killed = {mutant for of_cell in kills_in(FIRST_CELLS.read_text()).values() for mutant in of_cell}
    names = {mutant.name for mutant in MUTANTS}
    assert killed <= names, "a mutant is gone: renew the file"
    assert len(killed) >= 0.95 * len(names), names - killed


@pytest.mark.contract("C66")
def test_the_first_cells_are_planned_and_must_kill_their_mutants(tasks: list[Task]) -> None:
    globs, cells = {mutant.name: mutant.cells for mutant in MUTANTS}, {task.id for task in tasks}
    for cell, mutants in kills_in(FIRST_CELLS.read_text()).items():
        assert f"hostcb/{cell}" in cells
        for name in mutants:
            assert any(fnmatch.fnmatchcase(cell, glob) for glob in globs[name]), f"{name}: renew the file"


@pytest.mark.contract("C66")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_each_process_begins_with_its_part_of_them(tasks: list[Task], processes: int) -> None:
    ordered = in_running_order(tasks, processes)
    assert sorted(task.id for task in ordered) == sorted(task.id for task in tasks)
    first = len(kills_in(FIRST_CELLS.read_text()))
    part = len(tasks) // processes
    begun = {task.id for place in range(processes) for task in ordered[place * part :][: first // processes + 1]}
    assert {task.id for task in tasks if place_of(task.id) is not None} <= begun


@pytest.mark.contract("C66")
def test_a_ranking_is_a_greedy_cover_and_prefers_quick_cells() -> None:
    kills = {"a": {"x", "slow"}, "b": {"x", "slow"}, "c": {"y"}, "d": {"slow", "x"}}
    assert ranked(kills, {"x": 1.0, "slow": 9.0, "y": 1.0}) == [("x", ["a", "b", "d"]), ("y", ["c"])]


@pytest.mark.contract("C66")
def test_a_ranking_needs_a_kill_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = FIRST_CELLS.read_text()
    assert main(["mutants", "--rank", str(tmp_path)]) == 2
    assert "is no kill matrix" in capsys.readouterr().err
    (tmp_path / "mutants.json").write_text(json.dumps({"mutants": [{"mutant": "m", "trials": []}]}))
    with pytest.raises(NoMatrixError, match="no mutant is killed"):
        ranking_of(tmp_path)
    assert FIRST_CELLS.read_text() == before


@pytest.mark.contract("C65")
def test_a_quiet_cell_runs_alone(tmp_path: Path) -> None:
    """Even where other processes have one cell after another: behind it nobody enters."""
    entered, release, exclusive_ran = threading.Event(), threading.Event(), threading.Event()
    log: list[str] = []

    def loud(name: str) -> None:
        turns = Turns(tmp_path)
        with turns.turn(exclusive=False):
            log.append(f"{name} begins")
            entered.set()
            release.wait(30)
            log.append(f"{name} ends")
        turns.close()

    def exclusive() -> None:
        turns = Turns(tmp_path)
        with turns.turn(exclusive=True):
            log.append("exclusive")
            exclusive_ran.set()
        turns.close()

    threads = [threading.Thread(target=loud, args=["first"])]
    threads[0].start()
    assert entered.wait(30)
    threads.append(threading.Thread(target=exclusive))
    threads[1].start()
    assert not exclusive_ran.is_set()
    release.set()
    for thread in threads:
        thread.join(30)
    assert log == ["first begins", "first ends", "exclusive"]


@pytest.mark.contract("C65")
def test_nobody_waits_for_a_quiet_cell_that_is_known_to_hang(tasks: list[Task]) -> None:
    exclusive, *_ = (task for task in tasks if task.exclusive)
    known = Expectation((exclusive.id,), "hang", "it waits", "a link", "2026-11-25")
    assert runs_exclusively(exclusive, None)
    assert not runs_exclusively(exclusive, known)
    assert runs_exclusively(exclusive, replace(known, intermittent=True)), "it may end"
    assert runs_exclusively(exclusive, replace(known, verdict="fail"))
    assert not runs_exclusively(replace(exclusive, exclusive=False), None)


@pytest.mark.contract("C65")
def test_two_cells_that_need_no_quiet_run_together(tmp_path: Path) -> None:
    one, another = Turns(tmp_path), Turns(tmp_path)
    with one.turn(exclusive=False), another.turn(exclusive=False):
        pass
    one.close()
    another.close()


@pytest.mark.contract("C65")
def test_a_case_that_runs_exclusively_has_a_reason(tasks: list[Task]) -> None:
    exclusive = {case.kind for case in all_cases() if case.exclusive}
    assert exclusive
    assert all(len(case.exclusive.split()) > 4 for case in all_cases() if case.exclusive)
    assert {task.id.split("/")[2].split(".")[1] for task in tasks if task.exclusive} == exclusive
