"""The command `run`."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from ..engine.options import HOSTS, RunOptions, add_running, add_selection
from ..engine.preparation import prepare, take_platform, workers_of
from ..engine.requirements import require_pytest
from ..engine.results_folder.locking import FolderLock
from ..engine.run import run
from ..reports.markdown import markdown
from ..reports.results import load_results
from ..spec.depths import Depth
from ..spec.package import COMMAND
from .distributed import run_distributed
from .helping import add_command, add_patterns

UNUSABLE = 2


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "run",
        "Run the selected cells in worker processes, print a table, and write the results for `report` and `diff`.\n"
        "pytest runs the cells, each as one item, and has the options after `--`: -x, --lf, --junit-xml, -v, -p.",
        [
            "--smoke",
            "--platform cuda --results cuda",
            "--platform tpu --depth lower",
            "-k 'id_tap and scan'",
            "--cell hostcb/call/jit/cpu-1dev --repeat 100",
            "--shard 3/8 --results shard-3",
            "--shard 3/8 --results shard-3 --resume",
            "--smoke -- -x --junit-xml junit.xml",
        ],
        {
            0: "every cell is as expected: it passes, or is a known failure",
            1: "a cell is not as expected, or the run has a problem, for example an interrupt",
            UNUSABLE: "nothing was tested: bad input, no device, or no cell",
            3: "as 0 at depth compile, which the machine has chosen: nothing ran",
            4: "as 0 at depth lower, which the machine has chosen: nothing ran",
        },
    )
    add_selection(parser.add_argument)
    add_patterns(parser.add_argument)
    add_running(parser.add_argument)


def main(parsed: argparse.Namespace) -> int:
    options = RunOptions.of(parsed)
    if options.spread == HOSTS:
        ended = run_distributed(options)
        if isinstance(ended, int):
            return ended
        print(ended.summary())
        return ended.exit_code
    if options.spread:
        # Imported here: only this needs Dask.
        from .dask_shards import run_on_cluster

        return run_on_cluster(options)
    return run_here(options)


def run_here(options: RunOptions) -> int:
    """Run the cells on this machine, and print what they show."""
    # A missing package is known before the plan, which takes seconds.
    options = take_platform(options)
    require_pytest(options.workers or workers_of(None, options.platform))
    with FolderLock(options.results) as lock:
        prepared = prepare(options)
        lock.acquire()
        options = prepared.options
        found = run(prepared, workers_of(options.workers, options.platform, Depth(options.depth)))
    print(found.summary())
    if found.exit_code != UNUSABLE:
        print(f"Results are in {options.results}: `{COMMAND} report {shlex.quote(str(options.results))}` shows them.")
        _add_to_job_summary(options.results, options.name)
    return found.exit_code


def _add_to_job_summary(results: Path, name: str) -> None:
    """In a job of GitHub Actions, add the report to the page of the job."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        runs = [run for run in load_results(results) if run.name == name]
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(runs))
