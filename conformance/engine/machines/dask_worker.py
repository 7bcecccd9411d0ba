"""What a Dask worker does for `run --spread ADDRESS`: it runs shards, each in a process, one after the other.

A Dask worker imports this module, and neither JAX nor pytest. Its shards run `cli.shard`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...spec.package import PACKAGE
from ...spec.suite import versions
from ...warm.ending import Child, end

STOP_SECONDS = 10.0
"""A shard that is asked to end may write its results for so long."""


class ShardError(Exception):
    """A shard that has no results; the text says why."""


@dataclass(frozen=True)
class Command:
    """What the shards of one `run` have in common."""

    name: str
    """No other command has it; it is also the topic of what the shards print."""
    versions: Mapping[str, str]
    implementations: tuple[str, ...]
    options: Mapping[str, Any]
    """Those of the run, as JSON."""
    files: Mapping[str, str]
    """The text of each file of the client's machine that an option names."""


_turn = threading.Lock()
"""Shards take turns, so that no other one takes time from the deadlines of cells."""
_stopped: set[str] = set()
_processes: dict[str, Child] = {}
"""The process of each command in this Dask worker."""


def check_versions(command: Command) -> None:
    """Refuse a worker that has another JAX, or other sources of the suite, than the client."""
    found = versions(command.implementations)
    names = [name for name in {**command.versions, **found} if command.versions.get(name) != found.get(name)]
    if names:
        there = (f"{name} is {found.get(name)} there and {command.versions.get(name)} here" for name in names)
        raise ShardError(f"a Dask worker has other versions: {', '.join(there)}")


def run_shard(command: Command, shard: str) -> dict[str, str]:
    """The files with the results of a shard, by name; each line that it prints is an event of the Dask worker."""
    # Only a Dask worker calls this.
    from distributed import get_worker

    check_versions(command)
    last = "it wrote nothing"
    with _turn, tempfile.TemporaryDirectory(prefix="conformance-") as name:
        results = Path(name) / "results"
        for line in _lines(command, {**_with_files(command, Path(name)), "shard": shard, "results": str(results)}):
            last = line or last
            get_worker().log_event(command.name, f"shard {shard}: {line}")
        found = (*results.glob("conformance-*.json"), *results.glob("journal-*.jsonl"))
        files = {file.name: file.read_text(encoding="utf-8") for file in found}
    if not any(name.startswith("conformance-") for name in files):
        raise ShardError(last.removeprefix("ERROR: "))
    return files


def _with_files(command: Command, folder: Path) -> dict[str, Any]:
    """The options, with the files that they name in this folder."""
    own = dict(command.options)
    for option, text in command.files.items():
        file = folder / ("cells.txt" if option == "cells" else Path(own[option]).name)
        file.write_text(text, encoding="utf-8")
        own[option] = [f"@{file}"] if option == "cells" else str(file)
    return own


def _lines(command: Command, options: Mapping[str, Any]) -> Iterator[str]:
    process = Child(
        [sys.executable, "-m", f"{PACKAGE}.cli.shard", json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Where the Dask worker finds the suite, this process does, too.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    _processes[command.name] = process
    try:
        # It may have been stopped just before, or while it waited for its turn.
        if command.name in _stopped:
            raise ShardError("nobody waits for this any more")
        assert process.stdout is not None
        for line in process.stdout:
            yield line.decode(errors="replace").rstrip()
        process.wait()
    finally:
        del _processes[command.name]
        end(process, signal.SIGTERM, STOP_SECONDS)


async def stop(command: str) -> None:
    """End what a command has in this Dask worker."""
    _stopped.add(command)
    if process := _processes.get(command):
        await asyncio.to_thread(end, process, signal.SIGTERM, STOP_SECONDS)
