"""Commands on a local Dask cluster: `run` that stops early, `releases` and `bisect`; none leaves a worker busy."""

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
from typing import IO

import needs
import pytest

pytestmark = [pytest.mark.contract("C44"), needs.DASK]

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PROGRAM = ROOT / "tests" / "programs" / "dask_cluster.py"
DEADLINE = 120.0

BISECT = """\
import sys, pytest
from conformance.cli import bisect
from conformance.cli.commands import main
from releases_fakes import FakeIndex
bisect.index = FakeIndex
sys.exit(main(sys.argv[1:]))
"""
"""The index has these releases; their environments are in the folder that is named."""


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


def environment(folder: Path, version: str, script: str) -> None:
    """An environment that is there already: a shell script in the place of its Python."""
    name = "jax-{0}-jaxlib-{0}-py{1}.{2}".format(version, *sys.version_info[:2])
    python = folder / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def releases_options(folder: Path, *versions: str) -> list[str]:
    cells = [f"--cell=conformance_fakes:GOOD/{callback}/eager/cpu-1dev" for callback in ("id_tap", "call")]
    journal = folder / "releases.jsonl"
    return ["releases", *versions, *cells, "--environments", str(folder / "cache"), "--journal", str(journal)]


def test_a_release_is_tried_again_after_the_loss_of_its_worker(cluster: Cluster, tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); exit 1; }}"
    works = f'exec {sys.executable} "$@"'
    environment(tmp_path / "cache", "0.5.0", f"{once}\n{works}")
    environment(tmp_path / "cache", "0.6.2", "echo planted >&2; exit 1")
    code, printed, told = cluster.run(*releases_options(tmp_path, "0.5.0", "0.6.2"))
    assert (tmp_path / "once").exists()
    assert "2 cells with 1 release of JAX" in printed, told
    lines = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    found = [(line["release"]["jax"], line["cell"].split("/")[1], line["outcome"]["verdict"]) for line in lines]
    assert found == [("0.5.0", "id_tap", "pass"), ("0.5.0", "call", "pass")]
    assert (code, told.splitlines()[-1]) == (
        1,
        "ERROR: 0.6.2 was not tried to the end: JAX 0.6.2: a worker for cpu-1dev did not start: planted",
    )
    assert cluster.busy() == 0


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_interrupted_releases_free_the_workers(cluster: Cluster, tmp_path: Path) -> None:
    # As a worker does, it ends with its input.
    environment(tmp_path / "cache", "0.5.0", f"exec cat > {cluster.folder}/blocked")
    code, printed, told = cluster.interrupted(*releases_options(tmp_path, "0.5.0"))
    assert code == 1, printed + told
    assert "ERROR: the run was interrupted; --resume goes on" in told
    assert cluster.busy() == 0


def test_a_search_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    for version in ("0.6.1", "0.6.2"):
        environment(tmp_path / "cache", version, f'JAX={version} exec {sys.executable} -I -S "$@"')
    script = tmp_path / "script.py"
    script.write_text("import os; raise SystemExit(os.environ['JAX'] >= '0.6.2')")
    folders = ["--environments", str(tmp_path / "cache"), "--results", str(tmp_path / "results")]
    ends = ["--good", "0.6.1", "--bad", "0.6.2", "--runs", "1"]
    code, printed, told = cluster.run("bisect", "--script", str(script), *ends, *folders, program=("-c", BISECT))
    assert code == 0, printed + told
    assert "FOUND: 0.6.2 is the first that fails, after 0.6.1." in printed
    assert len((tmp_path / "results" / "probes.jsonl").read_text().splitlines()) == 2
    assert cluster.busy() == 0
