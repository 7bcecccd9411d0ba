"""Shards: each cell is in one, they take about as long as each other, and every machine finds the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.machines.shards import PROCESS_START, estimate, shard_of
from conformance.engine.options import RunOptions, Shard
from conformance.engine.run import Run
from conformance.engine.tasks import Task
from conformance.expectations.entries import Expectation, Expectations
from conformance.planning.cells import Plan, parse_cell
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C40")

ONE, EIGHT = Topology("cpu", 1), Topology("cpu", 8)


def tasks(count: int, topology: Topology = ONE, isolated: int = 0) -> list[Task]:
    """Cells of two implementations; the first ones are isolated."""
    return [
        Task(f"{name}/call/p{number}/{topology.name}", name, topology, 60.0, isolated=number < isolated)
        for name in ("hostcb", "jax")
        for number in range(count)
    ]


def shards(of: list[Task], count: int) -> list[frozenset[str]]:
    return [shard_of(of, Shard(number, count)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("isolated", [0, 3, 10])
def test_each_cell_is_in_one_shard(count: int, isolated: int) -> None:
    of = [*tasks(10, isolated=isolated), *tasks(7, EIGHT)]
    found = [cell for shard in shards(of, count) for cell in shard]
    assert sorted(found) == sorted(task.id for task in of)


def test_shards_take_about_as_long_as_each_other() -> None:
    of = [*tasks(300, isolated=20), *tasks(300, EIGHT)]
    cost = {task.id: estimate(task) + PROCESS_START * task.isolated for task in of}
    for count in (2, 3, 8):
        loads = [sum(cost[cell] for cell in shard) for shard in shards(of, count)]
        assert max(loads) < 1.1 * sum(loads) / count, loads


def test_the_kinds_of_workers_stay_together() -> None:
    """One starts in most shards, where a fair draw would start all four in each."""
    of = [*tasks(200), *tasks(200, EIGHT)]
    kind_of = {task.id: task.kind for task in of}
    kinds = [{kind_of[cell] for cell in shard} for shard in shards(of, 8)]
    assert sum(map(len, kinds)) <= 4 + 7


# Runs that are prepared -------------------------------------------------------------------------------------------

CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in ("pure_callback", "io_callback", "debug_callback")]


def prepared(tmp_path: Path, *arguments: str) -> Any:
    known = tmp_path / "none.toml"
    known.touch()
    cells = [f"--cell={cell}" for cell in CELLS]
    options = ["run", "--results", str(tmp_path / "results"), "--expectations", str(known), *cells, *arguments]
    return preparation.prepare(RunOptions.of(commands.parsed(options)))


def test_a_run_has_the_cells_of_its_shard_and_says_which(tmp_path: Path) -> None:
    whole = prepared(tmp_path)
    assert [cell.id for cell in whole.cells] == CELLS
    runs = [prepared(tmp_path, "--shard", f"{number}/2") for number in (1, 2)]
    assert sorted(cell.id for run in runs for cell in run.cells) == sorted(CELLS)
    data = runs[1]._report.as_json()
    assert data["shard"] == {"number": 2, "of": 2}
    assert data["selection"]["count"] == 3
    assert list(data["selection"]["cells"]) == CELLS
    assert data["versions"].keys() >= {"jax", "jaxlib", "suite"}
    assert "shard" not in whole._report.as_json()


def test_an_empty_shard_is_no_failure(tmp_path: Path) -> None:
    empty = [run for number in range(1, 5) if not (run := prepared(tmp_path, "--shard", f"{number}/4")).cells]
    assert len(empty) == 1
    (tmp_path / "results").mkdir()
    report = empty[0].finish(None)
    assert report.exit_code == 0
    assert "This shard has no cell" in report.summary()


def test_an_entry_for_a_cell_of_another_shard_is_not_stale(tmp_path: Path) -> None:
    """Each shard judges entries by the whole selection."""
    outside = "engine_is_no_plan"
    cells = tuple(map(parse_cell, CELLS))
    expectations = Expectations(
        tuple(Expectation((glob,), "fail", "planted", "none", "2026-01-01") for glob in (CELLS[2], outside))
    )
    run = Run(
        Plan((), ()),
        Plan(cells[:1], ()),
        expectations,
        RunOptions(results=tmp_path, depth="run", shard=Shard(1, 3)),
        "0.12.0",
        cells,
    )
    assert run._report.stale_expectations == (outside,)
