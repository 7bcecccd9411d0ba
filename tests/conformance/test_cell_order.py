"""What runs first, and what runs alone: cells that kill mutants, and cells that need a quiet machine."""

from __future__ import annotations

import fcntl
import fnmatch
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.engine.first_cells import FIRST_CELLS, kills_in, place_of
from conformance.engine.options import IMPLEMENTATIONS, RunOptions
from conformance.engine.preparation import planned
from conformance.engine.pytest_cells.exclusive import CELLS, Turns, runs_exclusively
from conformance.engine.run import task_of
from conformance.engine.tasks import Task, in_running_order
from conformance.expectations.entries import Expectation
from conformance.mutants import MUTANTS
from conformance.mutants.ranking import ranked


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Those of the default run."""
    options = RunOptions(devices=(1, 2, 4, 8), usual_devices=True, depth="run", implementations=IMPLEMENTATIONS)
    plan = planned(options)
    return [task_of(cell, 60.0) for cell in plan.on_this_release().cells]


@pytest.mark.contract("C66")
def test_the_first_cells_are_planned_and_must_kill_their_mutants(tasks: list[Task]) -> None:
    globs, cells = {mutant.name: mutant.cells for mutant in MUTANTS}, {task.id for task in tasks}
    killed = {mutant for of_cell in kills_in(FIRST_CELLS.read_text()).values() for mutant in of_cell}
    assert len(killed) >= 0.95 * len(globs), globs.keys() - killed
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
def test_a_quiet_cell_runs_alone_and_others_together(tmp_path: Path) -> None:
    turns = Turns(tmp_path)

    def is_free(lock: int) -> bool:
        """Whether a cell of another process may begin."""
        with (tmp_path / CELLS).open("ab") as cells:
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
