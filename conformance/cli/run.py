"""The command `run`."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from ..engine.live import CHOICES
from ..engine.locking import FolderLock
from ..engine.options import add_pytest, add_running, add_scheduler, add_selection, positive
from ..engine.preparation import ConflictingOptionsError, prepare, take_platform, workers_of
from ..engine.run import run
from ..engine.selections import choose_folder
from ..engine.tools import require_distributed, require_tools
from ..engine.user_plugins import require_plugins
from ..reports.markdown import markdown
from ..reports.report import NOTHING_RAN
from ..reports.results import load_results
from ..spec.package import COMMAND
from . import compiled, loaded
from .distributed import run_distributed
from .helping import add_command, add_patterns


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "run",
        "Run the selected cells in worker processes, print a table, and write the results for `report` and `diff`.",
        [
            "--smoke",
            "--platform cuda --results cuda",
            "--platform tpu --depth lower",
            "-k 'id_tap and scan'",
            "--cell hostcb/call/jit/cpu-1dev --repeat 100",
            "--shard 3/8 --results shard-3",
            "--shard 3/8 --results shard-3 --resume",
        ],
        {
            0: "every cell is as expected: it passes, or is a known failure",
            1: "a cell is not as expected, or the run has a problem, for example an interrupt",
            2: "nothing was tested: bad input, no device, or no cell",
            3: "as 0 at depth compile, which the machine has chosen: nothing ran",
            4: "as 0 at depth lower, which the machine has chosen: nothing ran",
        },
    )
    add_selection(parser.add_argument)
    add_patterns(parser.add_argument)
    add_running(parser.add_argument)
    compiled.add_option(parser.add_argument)
    loaded.add_options(parser.add_argument)
    add_pytest(parser.add_argument)
    parser.add_argument(
        "-n",
        dest="workers",
        type=positive(int),
        help="pytest processes, each with one worker process; by default 3 on cpu, elsewhere what the platform says",
    )
    add_scheduler(parser.add_argument, "run the cells")
    parser.add_argument(
        "--live",
        choices=CHOICES,
        default="auto",
        help="a view that is drawn in place, of how far the run is and which cells are slow; by default in a terminal, "
        "and elsewhere a line from time to time",
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="in a job of Slurm, Open MPI, Kubernetes or Cloud TPU, where every host runs this same command",
    )


def main(options: argparse.Namespace) -> int:
    if options.loaded_by:
        return loaded.run_loaded(options, options.arguments)
    if options.times:
        raise ConflictingOptionsError("--times is for --loaded-by; --repeat N runs each cell N times in one run")
    compiled.check_options(options)
    choose_folder(options, options.patterns)
    if options.distributed:
        ended = run_distributed(options)
        if isinstance(ended, int):
            return ended
        print(ended.summary())
        return ended.exit_code
    # A missing package is known before the plan, which takes seconds.
    take_platform(options)
    require_tools(options.workers or workers_of(None, options.platform))
    if options.scheduler:
        if options.stress or options.workers:
            raise ConflictingOptionsError("--scheduler has the cluster's workers: neither -n nor --stress goes with it")
        if options.pytest_plugins:
            raise ConflictingOptionsError("-p is for pytest processes, and a Dask cluster has none: leave it out")
        require_distributed()
    require_plugins(options.pytest_plugins)
    with FolderLock(options.results) as lock:
        prepared = prepare(options, options.patterns)
        compiled.check(options.compiled, prepared)
        lock.acquire()
        found = run(prepared, workers_of(options.workers, options.platform, prepared.options.depth))
    print(found.summary())
    if found.exit_code != NOTHING_RAN:
        print(f"Results are in {options.results}: `{COMMAND} report {shlex.quote(str(options.results))}` shows them.")
        _add_to_job_summary(options.results, prepared.options.name)
    return found.exit_code


def _add_to_job_summary(results: Path, name: str) -> None:
    """In a job of GitHub Actions, add the report to the page of the job."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        runs = [run for run in load_results(results) if run.name == name]
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(runs))
