"""The command `merge`: the results of shards become those of one run. It needs no JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..engine.results_folder.locking import FolderLock
from ..reports.files import write
from ..reports.html import html
from ..reports.merging import MergeError, Part, merged, parts_in, was_killed, write_merged
from ..reports.results import load_results
from ..reports.table import several
from ..reports.terminal import PAGE, summary
from .helping import add_command

Joined: TypeAlias = Mapping[str, tuple[dict[str, Any], Sequence[Part]]]


def add_parser(commands: Any) -> None:
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
    if options.results.resolve() in [folder.resolve() for folder in options.folders]:
        raise MergeError(f"{options.results} is one of the folders to merge: name another one with --results")
    with FolderLock(options.results) as lock:
        # Before the folder is made: the shards may not fit together.
        joined = read_shards(options.folders)
        lock.acquire()
        return write_joined(joined, options.results)


def read_shards(folders: Sequence[Path]) -> Joined:
    """The results that these folders hold together, with their shards, by the name of the run."""
    parts = parts_in(folders)
    killed = [folder for folder in folders if was_killed(folder)]
    return {name: (merged(of_run, killed), of_run) for name, of_run in parts.items()}


def write_joined(joined: Joined, results: Path) -> int:
    """Write the results, print what they show, and return the exit code."""
    for data, parts in joined.values():
        write_merged(data, parts, results)
    runs = [run for run in load_results(results) if run.name in joined]
    page = results / PAGE
    write(page, html(runs))
    for run in runs:
        print(f"{run.name}: {several(len(joined[run.name][1]), 'shard')}\n\n{summary(run, page=page)}")
    return max(data["exit_code"] for data, _ in joined.values())
