"""`run` on a local Dask cluster stops early, and leaves no worker busy."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import needs
import pytest

pytestmark = [pytest.mark.contract("C44"), needs.DASK]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAM = ROOT / "tests" / "programs" / "dask_cluster.py"
DEADLINE = 120.0

CALLBACKS = (
    *("id_tap", "call", "call_no_result", "io_callback", "io_callback_ordered", "pure_callback"),
    *("debug_callback", "debug_callback_ordered"),
)


@dataclass
class Cluster:
    process: subprocess.Popen[str]
    address: str
    folder: Path
    environment: dict[str, str]

    def command(self, *arguments: str, program: tuple[str, ...] = ("-m", "conformance")) -> subprocess.Popen[str]:
        """A command of the suite that has the cluster."""
        return subprocess.Popen(
            [sys.executable, *program, *arguments, "--scheduler", self.address],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, program: tuple[str, ...] = ("-m", "conformance")) -> tuple[int, str, str]:
        process = self.command(*arguments, program=program)
        try:
            printed, told = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
        return process.returncode, printed, told

    def interrupted(self, *arguments: str) -> tuple[int, str, str]:
        """What a command says if Ctrl-C comes while something of it holds the pipe `blocked`."""
        os.mkfifo(self.folder / "blocked")
        process = self.command(*arguments)
        try:
            # Opening a pipe waits until the other end is open, too.
            with (self.folder / "blocked").open() as blocked:
                process.send_signal(signal.SIGINT)
                printed, told = process.communicate(timeout=60)
                # What held the other end has ended.
                assert select.select([blocked], [], [], 60)[0]
                assert blocked.read() == ""
        finally:
            process.kill()
            (self.folder / "blocked").unlink()
        return process.returncode, printed, told

    def busy(self) -> int:
        """The tasks that are left when each worker has answered."""
        print(file=_pipe(self.process.stdin), flush=True)
        return int(_pipe(self.process.stdout).readline())


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "ENGINE_FAKES": str(folder)}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "1"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Cluster(process, _pipe(process.stdout).readline().strip(), folder, environment)
        process.communicate(timeout=60)
    finally:
        process.kill()


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    for file in one_cluster.folder.iterdir():
        file.unlink()
    return one_cluster


def run_options(folder: Path, implementation: str) -> list[str]:
    cells = [f"--cell={implementation}/{callback}/eager/cpu-1dev" for callback in CALLBACKS]
    return ["run", *cells, "--results", str(folder), "--expectations", os.devnull]


def results_in(folder: Path) -> Any:
    return json.loads((folder / "conformance-cpu.json").read_text())


def test_a_run_stops_after_as_many_unexpected_results(cluster: Cluster, tmp_path: Path) -> None:
    """The second of eight cells is the only one that fails."""
    code, printed, told = cluster.run(*run_options(tmp_path, "engine_fakes:FAILS_IN_CALL"), "--maxfail", "1")
    assert code == 1, printed + told
    results = results_in(tmp_path)
    verdicts = [cell["verdict"] for cell in results["cells"]]
    why = "the run stopped after 1 unexpected results: --maxfail is 1"
    assert {cell["witness"] for cell in results["cells"] if cell["verdict"] == "missing"} == {why}
    assert verdicts[:2] == ["pass", "fail"]
    assert verdicts[-1] == "missing"
    assert results["problems"] == [why]
    assert cluster.busy() == 0


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupted_run_keeps_its_cells_and_frees_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    """The second cell of a batch blocks. The first one is in the results, and no other cell starts."""
    code, printed, told = cluster.interrupted(*run_options(tmp_path, "engine_fakes:BLOCKS_IN_PIPE"))
    assert code == 1, printed + told
    results = results_in(tmp_path)
    assert [cell["verdict"] for cell in results["cells"]] == ["pass", *["missing"] * 7]
    assert results["problems"] == ["the run was interrupted"]
    journal = [json.loads(line) for line in (tmp_path / "journal-cpu.jsonl").read_text().splitlines()]
    assert [line["cell"] for line in journal if line["event"] == "concluded"] == [results["cells"][0]["id"]]
    assert cluster.busy() == 0
