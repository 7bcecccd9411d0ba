"""Runs of the suite in processes of their own, with the implementations of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from conformance.cli.commands import main

Capture: TypeAlias = pytest.CaptureFixture[str]
Patch: TypeAlias = pytest.MonkeyPatch

ROOT = Path(__file__).parents[2]
PATH = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
"""On which processes find the suite and the implementations of this folder."""

SUITE = (sys.executable, "-m", "conformance")

DEADLINE = 240.0
"""Far beyond what a run of a few cells takes."""


def cells(implementation: str, *callbacks: str) -> list[str]:
    return [f"--cell={implementation}/{callback}/eager/cpu-1dev" for callback in callbacks]


def started(folder: Path, *command: object, **more: str) -> subprocess.Popen[str]:
    """Start a program with the suite on its path in a folder, as the leader of a session."""
    # With these, pytest puts colors into the text in which tests look for words.
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS")}
    environment = inherited | {"PYTHONPATH": PATH, "ENGINE_FAKES": str(folder)} | more
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [*map(str, command)], cwd=folder, env=environment, start_new_session=True, text=True, **pipes
    )


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        output, errors = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def ran(folder: Path, *command: object, **more: str) -> subprocess.CompletedProcess[str]:
    return end(started(folder, *command, **more))


def start(folder: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start `run`, whose results go to `folder / "results"`."""
    return started(folder, *SUITE, "run", f"--results={folder / 'results'}", *arguments, **more)


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return end(start(folder, *arguments, **more))


def run_here(folder: Path, monkeypatch: Patch, *arguments: str, **more: str) -> int:
    """`run` in this process, whose server of forks serves many tests if the folder stays: the exit code."""
    monkeypatch.setattr(sys, "argv", ["conformance", "run", "-n", "1", *arguments])
    for name, value in {"ENGINE_FAKES": str(folder), **more}.items():
        monkeypatch.setenv(name, value)
    return main(["run", "-n", "1", f"--results={folder / 'results'}", *arguments])


def report_in(folder: Path, platform: str = "cpu") -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / f"conformance-{platform}.json").read_text())
    return report


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {cell["id"]: cell["verdict"] for cell in report["cells"]}


def journal_in(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The events of these kinds in the journal of a run."""
    events = map(json.loads, (folder / "journal-cpu.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] in kinds]


@contextlib.contextmanager
def blocked(folder: Path) -> Iterator[Any]:
    """Where a cell of the implementation `BLOCKS` writes its process once it has begun; gives a wait for that."""
    os.mkfifo(folder / "blocked")
    # Read and write: the cell must not wait for a reader, nor be missed if the run ends before.
    with open(os.open(folder / "blocked", os.O_RDWR | os.O_NONBLOCK)) as pipe:

        def worker(run: subprocess.Popen[str]) -> int:
            ready, _, _ = select.select([pipe], [], [], DEADLINE)
            assert ready, end(run)
            return os.pidfd_open(int(pipe.read(16)))

        yield worker


def ended(process: int) -> bool:
    """Whether a process ends in time."""
    return bool(select.select([process], [], [], DEADLINE)[0])
