"""The command `merge`: the results of shards become those of one run. It needs no JAX."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..engine.locking import FolderLock
from ..reports.merging import MergeError, merged, parts_in, was_killed, write_merged
from ..reports.results import load_results
from ..reports.visible import in_a_line
from .helping import add_command


def add_parser(commands: Any) -> None:
    """Add this command to the subparsers of the command line."""
    parser = add_command(
        commands,
        "merge",
        "Join the results of `run --shard 1/N` to `run --shard N/N` into those of one run, which `report`,\n"
        "`diff` and `expect` read. A shard that is missing is a problem of the joined results, which name\n"
        "its cells.",
        ["shard-1 shard-2 shard-3 --results results", "artifacts/* --results results"],
        {
            0: "every cell is there, and as expected",
            1: "a cell or a shard is missing, a cell is not as expected, or a shard had a problem",
            2: "nothing was written: bad input, other versions, other selections, or a shard that is there twice",
        },
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="what `run --results` was given")
    parser.add_argument("--results", type=Path, required=True, metavar="OUT", help="where the results are written")


def main(options: argparse.Namespace) -> int:
    results: Path = options.results
    if results.resolve() in [folder.resolve() for folder in options.folders]:
        raise MergeError(f"{results} is one of the folders to merge: name another one with --results")
    parts = parts_in(options.folders)
    killed = [folder for folder in options.folders if was_killed(folder)]
    joined = {name: merged(of_run, killed) for name, of_run in parts.items()}
    with FolderLock(results) as lock:
        lock.acquire()
        for name, data in joined.items():
            write_merged(data, parts[name], results)
    for run in load_results(results):
        if run.name in joined:
            print(f"{run.name}: {len(parts[run.name])} shards: {run.totals}")
            print("".join(f"PROBLEM: {in_a_line(problem)}\n" for problem in run.problems), end="")
    return max(data["exit_code"] for data in joined.values())
