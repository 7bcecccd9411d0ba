"""The command `run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.options import HOSTS, RunOptions, add_running, add_selection
from ..engine.requirements import require_pytest
from ..engine.results_folder.locking import FolderLock
from ..reports.files import write
from ..reports.html import html
from ..reports.markdown import markdown
from ..reports.terminal import PAGE
from ..spec.depths import Depth
from ..spec.package import COMMAND
from .helping import add_command, add_patterns

if TYPE_CHECKING:
    from ..reports.report import Report

UNUSABLE = 2


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "run",
        "Run the selected cells in worker processes, show what is unexpected, and write a page and the results.\n"
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
            130: "interrupted before the first cell",
        },
    )
    add_selection(parser.add_argument)
    add_patterns(parser.add_argument)
    add_running(parser.add_argument)


def main(parsed: argparse.Namespace) -> int:
    options = RunOptions.of(parsed)
    if options.spread == HOSTS:
        from .distributed import run_distributed

        ended = run_distributed(options)
        return ended if isinstance(ended, int) else show(ended, options)
    if options.spread:
        # Imported here: only this needs Dask.
        from .dask_shards import run_on_cluster

        return run_on_cluster(options)
    return run_here(options)


def run_here(options: RunOptions) -> int:
    """Run the cells on this machine, and print what they show."""
    from ..engine.preparation import prepare, take_platform, workers_of
    from ..engine.run import run

    # A missing package is known before the plan, which takes seconds.
    options = take_platform(options)
    require_pytest(options.workers or workers_of(None, options.platform))
    with FolderLock(options.results) as lock:
        prepared = prepare(options)
        lock.acquire()
        options = prepared.options
        found = run(prepared, workers_of(options.workers, options.platform, Depth(options.depth)))
        return show(found, options)


def show(report: Report, options: RunOptions) -> int:
    """Write the page, print what the cells show, and return the exit code."""
    page = options.results / PAGE if report.exit_code != UNUSABLE else None
    if page:
        try:
            write(page, html([report.record]))
        except OSError as error:
            report.problems.append(f"{page} could not be written: {error.strerror}")
            page = None
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    go_on = _resuming() if report.left else ""
    print(report.summary(page=page, go_on=go_on, known=options.chosen, colour=colour))
    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) and report.exit_code != UNUSABLE:
        # In a job of GitHub Actions, the report is on the page of the job.
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown([report.record]))
    return report.exit_code


def _resuming() -> str:
    """This command, so that it goes on with the same run."""
    own = [word for word in sys.argv[1:] if word != "--resume"]
    return f"{COMMAND} {shlex.join([*own[:1], '--resume', *own[1:]])}"
