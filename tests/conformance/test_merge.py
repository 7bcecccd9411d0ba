"""Shards joined: the same as one run of all cells; parts of different wholes are refused, and gaps are named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite_runs import Capture

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.options import RunOptions
from conformance.oracle.verdicts import Outcome, Stage, Verdict

pytestmark = pytest.mark.contract("C41")

NAMES = ("pure_callback", "io_callback", "debug_callback", "debug_print", "io_callback_ordered")
CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in NAMES]
INFO = {"jax": "0.12.0", "platform": "cpu", "device_count": 1, "cores": 2}
PASS, FAIL = Outcome(Verdict.PASS, seconds=0.5), Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: it", anomaly="lost")


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    """Writes the results of a shard, as if its cells had run."""

    def write(text: str, cells: list[str] = CELLS, folder: str = "", **outcomes: Outcome) -> Path:
        results = tmp_path / (folder or text.replace("/", "-of-"))
        results.mkdir()
        arguments = ["run", "--shard", text, "--results", str(results), "--expectations", os.devnull]
        run = preparation.prepare(RunOptions.of(commands.parsed([*arguments, *(f"--cell={cell}" for cell in cells)])))
        for cell in run.cells:
            run._report.add(cell, outcomes.get(cell.callback_name, PASS))
        run._report.run_info = {"cpu-1dev": dict(INFO)}
        run._report.seconds, run._report.process_starts = 3.0, 1
        run._report.write(results / "conformance-cpu.json")
        lines = [{"event": "header"}, *({"event": "end", "cell": cell.id} for cell in run.cells), {"event": "finished"}]
        (results / "journal-cpu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
        return results

    return write


def data_in(folder: Path) -> Any:
    return json.loads((folder / "conformance-cpu.json").read_text())


def merge(out: Path, *folders: Path) -> int:
    return commands.main(["merge", *map(str, folders), "--results", str(out)])


def change(folder: Path, **fields: Any) -> Path:
    (folder / "conformance-cpu.json").write_text(json.dumps(data_in(folder) | fields))
    return folder


def refusal(capsys: Capture, out: Path, *folders: Path) -> str:
    assert merge(out, *folders) == 2
    assert not (out / "conformance-cpu.json").exists()
    return capsys.readouterr().err


def test_all_shards_are_one_run(shard: Any, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert merge(out, *(shard(f"{number}/3", debug_print=FAIL) for number in (3, 1, 2))) == 1
    data = data_in(out)
    assert [cell["id"] for cell in data["cells"]] == CELLS
    assert (data["seconds"], data["process_starts"], data["problems"], data["exit_code"]) == (3.0, 3, [], 1)
    assert [one["shard"] for one in data["merged"]] == [1, 2, 3]
    assert data["run_info"] == {"cpu-1dev": INFO}
    ended = [json.loads(line)["cell"] for line in (out / "journal-cpu.jsonl").read_text().splitlines()]
    assert sorted(ended) == sorted(CELLS)
    # It is what one run would have written.
    whole = shard("1/1", debug_print=FAIL, folder="whole")
    assert commands.main(["diff", str(whole), str(out)]) == 0
    assert "is merged already" in refusal(capsys, tmp_path / "again", out)


def test_what_is_missing_and_problems_are_named(shard: Any, tmp_path: Path) -> None:
    """A shard, cells of a shard, and a stale entry, which is one of the whole."""
    words = "the expectation 'gone' matches no planned cell"
    first, third = shard("1/3"), shard("3/3", io_callback=Outcome(Verdict.MISSING, reason="planned and never run"))
    interrupted = ["the run was interrupted", "cpu-1dev: hang", words]
    change(first, problems=interrupted, gaps=interrupted[:1], stale_expectations=["gone"])
    change(third, problems=[words], stale_expectations=["gone"])
    assert merge(tmp_path / "out", first, third) == 1
    data = data_in(tmp_path / "out")
    ran = {cell["id"] for folder in (first, third) for cell in data_in(folder)["cells"]}
    missing = [cell for cell in CELLS if cell not in ran]
    assert missing and [cell["id"] for cell in data["cells"]] == CELLS
    records = {cell["id"]: cell for cell in data["cells"] if cell["verdict"] == "missing"}
    assert {*missing} <= records.keys()
    count = f"{len(missing)} cell{'s' * (len(missing) > 1)}"
    named = {f"shard 2/3 missing: {count}: {', '.join(missing)}", "shard 1/3: the run was interrupted"}
    named |= {f"shard 3/3 has not run 1 cell: {cell}" for cell in records.keys() - {*missing}}
    assert {*data["gaps"]} == named
    assert {*data["problems"]} == named | {"shard 1/3: cpu-1dev: hang", words}
    assert (data["stale_expectations"], data["exit_code"]) == (["gone"], 1)
    # An entry that one shard alone does not use is none.
    change(third, problems=[], stale_expectations=[])
    merge(tmp_path / "again", first, third)
    assert data_in(tmp_path / "again")["stale_expectations"] == []


def test_the_command_of_the_whole_runs_every_shard_though_one_fails(shard: Any, tmp_path: Path) -> None:
    folders = [shard(f"{number}/2", folder=f"my {number}") for number in (1, 2)]
    for folder in folders:
        change(folder, run=data_in(folder)["run"] | {"command": f"run {folder.name[-1]}"})
    merge(tmp_path / "out", *folders)
    command, named = data_in(tmp_path / "out")["run"]["command"], " ".join(f"'{folder}'" for folder in folders)
    assert command == f"run 1; run 2; python -m conformance merge {named} --results results"
    merge(tmp_path / "one", folders[0])
    assert data_in(tmp_path / "one")["run"]["command"] == "run 1"


def test_parts_of_different_wholes_are_refused(shard: Any, tmp_path: Path, capsys: Capture) -> None:
    first, second, out = shard("1/2"), shard("2/2"), tmp_path / "out"
    before = data_in(second)
    fields: dict[str, dict[str, Any]] = {
        "the versions of jax are": {"versions": {"jax": "0.4.31"}},
        "the option repeat are": {"options": {"repeat": 7}},
        "with cpu-1dev, jax is 0.12.0 and 0.10.2": {"run_info": {"cpu-1dev": INFO | {"jax": "0.10.2"}}},
        "the plugins are {} and {'acme-jax-plugin': '2.3.1'}": {
            "run": before["run"] | {"plugins": {"acme-jax-plugin": "2.3.1"}}
        },
        "is in": {"cells": data_in(first)["cells"]},
    }
    for words, changed in fields.items():
        assert words in refusal(capsys, out, first, change(second, **before | changed))
    change(second, **before)
    (tmp_path / "empty").mkdir()
    others = {
        "shard 1/2 is there twice": (first, first, second),
        "the selections have cells: 5 and 3": (first, shard("2/2", cells=CELLS[:3], folder="other")),
        "they are shards of 2 and 3": (first, shard("3/3")),
        "holds no conformance-PLATFORM.json": (first, tmp_path / "empty"),
    }
    for words, folders in others.items():
        assert words in refusal(capsys, out, *folders)
