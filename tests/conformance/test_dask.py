"""Shards on a Dask cluster: a lost worker costs no cell, and a shard that is missing runs again."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from suite_runs import ROOT, cells, environment, python, report_in, verdicts
from support import requirements

from conformance.cli import commands, dask_shards
from conformance.cli.dask_shards import Shards, command_of
from conformance.engine.machines.dask_worker import ShardError, check_versions
from conformance.engine.options import RunOptions, Shard

pytestmark = pytest.mark.contract("C44")

PROGRAMS = ROOT / "tests" / "programs"
CELL = "jax/io_callback/eager/cpu-1dev"


def test_a_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "distributed" else found(name))
    assert commands.main(["run", "--cell", CELL, "--spread", "tcp://nowhere:1"]) == 2
    assert "pip install 'hostcb-conformance[distributed]'" in capsys.readouterr().err


@requirements.DASK
def test_a_scheduler_that_does_not_answer_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_shards, "CONNECT_SECONDS", 0.2)
    assert commands.main(["run", "--cell", CELL, "--spread", "tcp://127.0.0.1:1"]) == 2
    assert "ERROR: --spread: no Dask scheduler answers at tcp://127.0.0.1:1: " in capsys.readouterr().err
    assert not [*tmp_path.rglob("conformance-*")]


def test_workers_with_other_versions_are_refused() -> None:
    command = command_of(RunOptions(cells=(CELL,)))
    check_versions(command)
    with pytest.raises(ShardError, match=r"jax is .* there and 0\.4\.1 here$"):
        check_versions(replace(command, versions={**command.versions, "jax": "0.4.1"}))
    options = RunOptions(devices=(1, 8), shard=Shard(2, 3), patterns=("id_tap",), pytest_options=("-x",))
    assert RunOptions.from_json(json.loads(json.dumps(options.as_json()))) == options


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


@requirements.DASK
@pytest.mark.thorough
def test_a_lost_worker_costs_no_cell(tmp_path: Path) -> None:
    """The first cell kills the Dask worker that runs it, once. The cells and the known failures are in files."""
    chosen = [
        *cells("engine_fakes:KILLS_DASK", "call"),
        *cells("implementation_fakes:GOOD", "id_tap", "call", "call_no_result"),
    ]
    names = [option.partition("=")[2] for option in chosen]
    (tmp_path / "plan.txt").write_text("\n".join(names))
    (tmp_path / "none.toml").touch()
    where = ["--results", str(tmp_path / "results"), "--expectations", str(tmp_path / "none.toml")]
    ended = python(tmp_path, str(PROGRAMS / "dask_run.py"), *where, f"--cell=@{tmp_path / 'plan.txt'}")
    assert ended.stdout.splitlines()[-1:] == ["0"], ended.stdout + ended.stderr
    report = report_in(tmp_path / "results")
    assert verdicts(report) == dict.fromkeys(names, "pass")
    assert (report["problems"], report["run_info"].keys()) == ([], {"cpu-1dev"})


@requirements.DASK
@pytest.mark.thorough
@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupted_run_frees_the_workers(tmp_path: Path) -> None:
    """The only cell blocks, in one of two shards; the other one has no cell, and may have ended before or not."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment(tmp_path)}
    program = [sys.executable, str(PROGRAMS / "dask_cluster.py"), "1"]
    os.mkfifo(tmp_path / "blocked")
    with subprocess.Popen(program, stderr=subprocess.DEVNULL, **pipes) as cluster:  # type: ignore[call-overload]
        where = ["--spread", cluster.stdout.readline().strip(), "--results", str(tmp_path / "results")]
        cell = ["--cell=engine_fakes:BLOCKS_IN_PIPE/call/eager/cpu-1dev", "--expectations", os.devnull]
        suite = [sys.executable, "-m", "conformance", "run", *cell, *where]
        run = subprocess.Popen(suite, stderr=subprocess.STDOUT, **pipes)  # type: ignore[call-overload]
        try:
            # Opening a pipe waits until the other end is open, too.
            with (tmp_path / "blocked").open() as blocked:
                assert blocked.readline() == "blocked\n"
                run.send_signal(signal.SIGINT)
                printed, _ = run.communicate(timeout=60)
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
