"""`run` on a local Dask cluster stops early, and leaves no worker busy."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import needs
import pytest

pytestmark = [pytest.mark.contract("C44"), needs.DASK]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAM = ROOT / "tests" / "programs" / "dask_cluster.py"
DEADLINE = 120.0


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


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupted_run_frees_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    """The only cell blocks, in one of two shards; the other one has no cell, and may have ended before or not."""
    cell = "--cell=engine_fakes:BLOCKS_IN_PIPE/call/eager/cpu-1dev"
    where = ["--results", str(tmp_path), "--expectations", os.devnull]
    code, printed, told = cluster.interrupted("run", cell, *where)
    assert code in (1, 2), printed + told
    assert ": the run was interrupted" in told
    assert cluster.busy() == 0
