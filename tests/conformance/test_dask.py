"""Cells on a Dask cluster, whose tasks are shards: a lost worker costs no cell."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import needs
import pytest

from conformance.cli import commands
from conformance.cli.dask_shards import Shards
from conformance.engine import dask_work
from conformance.engine.dask_pieces import PieceError
from conformance.engine.options import RunOptions, Shard

pytestmark = pytest.mark.contract("C44")

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAM = ROOT / "tests" / "programs" / "dask_run.py"


CELL = ("--cell", "jax/io_callback/eager/cpu-1dev")


def test_a_missing_package_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "distributed" else found(name, *rest)
    )
    assert commands.main(["run", *CELL, "--scheduler", "tcp://nowhere:1"]) == 2
    told = capsys.readouterr().err
    assert told == "ERROR: --scheduler needs Dask's package distributed: pip install 'hostcb[distributed]'\n"


@needs.DASK
def test_a_scheduler_that_does_not_answer_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What an earlier run has left stays as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_work, "CONNECT_SECONDS", 0.2)
    kept = tmp_path / "results" / "journal-cpu.jsonl"
    kept.parent.mkdir()
    kept.write_text("kept\n")
    assert commands.main(["run", *CELL, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "ERROR: --scheduler: no Dask scheduler answers at tcp://127.0.0.1:1: " in capsys.readouterr().err
    assert kept.read_text() == "kept\n"


class Cluster:
    """A cluster on which one shard fails; it notes which shards it was asked for."""

    workers = 1

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.asked: list[str] = []

    def ask(self, function: Any, options: dict[str, Any], texts: dict[str, str]) -> Iterator[dict[str, str]]:
        assert json.loads(json.dumps(options)) == options, "the options travel as JSON"
        self.asked.append(options["shard"])
        yield {"line": "1 passed"}
        if options["shard"] == self.failing:
            raise PieceError("3 Dask workers were lost while they ran it")
        yield {"file": "conformance-cpu.json", "text": f"{texts}"}

    def stop(self) -> None: ...


def test_a_shard_that_is_missing_runs_with_resume(tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    known.write_text("text")
    folder = tmp_path / "shards"
    folder.mkdir()
    options = RunOptions(results=tmp_path, expectations=known, scheduler="tcp://nowhere:1")
    first = Cluster(failing="2/2")
    problems = Shards(options, folder, first).run()  # type: ignore[arg-type]
    assert problems == ["shard 2/2: 3 Dask workers were lost while they ran it"]
    assert sorted(first.asked) == ["1/2", "2/2"]
    assert (folder / "1-of-2" / "conformance-cpu.json").read_text() == "{'expectations': 'text'}"
    second = Cluster()
    assert Shards(replace(options, resume=True), folder, second).run() == []  # type: ignore[arg-type]
    assert second.asked == ["2/2"]
    third = Cluster(failing="1/2")
    assert len(Shards(options, folder, third).run()) == 1  # type: ignore[arg-type]
    assert [one.name for one in folder.iterdir()] == ["2-of-2"], "without --resume the old ones are gone"


def test_options_travel_as_json() -> None:
    options = RunOptions(devices=(1, 8), shard=Shard(2, 3), patterns=("id_tap",), pytest_options=("-x",))
    assert RunOptions.from_json(json.loads(json.dumps(options.as_json()))) == options


@needs.DASK
def test_a_lost_worker_costs_no_cell(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it, once."""
    known = tmp_path / "none.toml"
    known.touch()
    once = "engine_fakes:KILLS_DASK/call/eager/cpu-1dev"
    cells = [
        once,
        *(f"implementation_fakes:GOOD/{name}/eager/cpu-1dev" for name in ("id_tap", "call", "call_no_result")),
    ]
    where = ["--results", str(tmp_path / "results"), "--expectations", str(known)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "ENGINE_FAKES": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), *where, *(f"--cell={cell}" for cell in cells)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.stdout.splitlines()[-1:] == ["0"], ended.stdout + ended.stderr
    report = json.loads((tmp_path / "results" / "conformance-cpu.json").read_text())
    assert {cell["id"]: cell["verdict"] for cell in report["cells"]} == dict.fromkeys(cells, "pass")
    assert (report["problems"], report["run_info"].keys()) == ([], {"cpu-1dev"})
    assert "shard 1/4: " in ended.stdout
