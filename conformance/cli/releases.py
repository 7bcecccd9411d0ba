"""The command `releases`: a table of cells by release."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..engine.options import positive
from ..engine.progress import Progress
from ..expectations.entries import Expectations, load_expectations
from ..releases.environments import Environments
from ..releases.judging import harness_errors, problems_of
from ..releases.records import Record, Records
from ..releases.release import Release, ReleaseError
from ..releases.spreading import Place, tabulate_on
from ..releases.table import table_of, tried
from ..releases.tabulating import How, tabulate
from ..reports.table_pages import html, markdown
from .helping import add_command
from .release_options import add_cells, add_probing, cells_of, check_page, environments_of, lacking, releases_of
from .scheduling import check_scheduler, cluster_for, implementations_of, place_on_workers

WORSE = 1


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "releases",
        "Run cells with several releases of JAX, each in a cached environment, and print a table of what changed.",
        [
            "0.6.2 0.7.0 0.8.3",
            "--last 8 -k 'jax and ordered' --html releases.html",
            "0.6.0..0.8.3 --resume",
            "--last 8 --scheduler tcp://HOST:8786",
        ],
        {
            0: "all cells ran with all releases",
            1: "not all of them ran, fewer than --last are there, the suite failed, or --expectations are not met",
            2: "nothing could be tried",
        },
    )
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help="releases: 0.6.2, 0.6.2:0.6.1 for jax with another jaxlib, 0.6.0..0.8.3 for all between",
    )
    parser.add_argument("--last", type=positive(int), metavar="N", help="the newest N releases")
    add_cells(parser)
    add_probing(parser)
    add_journal(parser, "results/releases.jsonl")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the table as a page, with witnesses and histories")
    parser.add_argument(
        "--expectations", type=Path, metavar="FILE", help="known failures of these releases: others are an error"
    )


def add_journal(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--journal", type=Path, default=Path(default), metavar="FILE", help="keeps finished probes")
    parser.add_argument("--resume", action="store_true", help="go on with what the journal has")


def main(options: argparse.Namespace) -> int:
    check_page(options.html)
    check_scheduler(options.scheduler)
    cells = cells_of(options)
    expected = _expectations(options.expectations)
    environments = environments_of(options)
    releases, left_out = releases_of(options.versions, options.last, environments)
    records, problems = recorded(options, cells, releases, environments)
    problems = [*lacking(options.last, environments), *problems]
    if expected:
        problems += problems_of(records, tried(records, releases), cells, expected)
    else:
        problems += harness_errors(records, releases, cells)
    table = table_of(records, releases, cells, left_out, problems)
    print(markdown(table), end="")
    if options.html:
        options.html.write_text(html(table), encoding="utf-8", errors="backslashreplace")
    return report_problems(problems)


def report_problems(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"ERROR: {problem}", file=sys.stderr)
    return WORSE if problems else 0


def recorded(
    options: argparse.Namespace, cells: Sequence[str], releases: Sequence[Release], environments: Environments
) -> tuple[list[Record], list[str]]:
    """The runs of the cells with the releases, also those that the journal has already, and what went wrong."""
    how = How(options.journal.with_suffix(".log"), options.deadline, options.repeat, options.stress)
    with contextlib.ExitStack() as stack:
        # A cluster that is not there leaves the last journal alone.
        work = (
            stack.enter_context(cluster_for(options.scheduler, implementations_of(cells)))
            if options.scheduler
            else None
        )
        journal = Records(options.journal, options.resume, how.conditions(options.python))
        records = stack.enter_context(contextlib.closing(journal))
        stack.enter_context(_sigterm_is_an_interrupt())
        # The journal may have other releases and cells.
        wanted = [(release, cell) for release in releases for cell in cells]
        missing = sum(max(0, options.repeat - records.count(release, cell)) for release, cell in wanted)
        progress = Progress(max(1, missing))

        def note(record: Record) -> None:
            progress.advance(f"{record.release.label} {record.cell}", acceptable=True)

        if work:
            place = Place(place_on_workers(options.environments), options.python)
            came = tabulate_on(work, releases, cells, place, records, how, note)
        else:
            came = tabulate(releases, cells, environments, records, how, note)
        progress.finish()
        if not records.all and came.skipped and not came.interrupted:
            raise ReleaseError(came.skipped[0].reason)
        problems = [f"{skipped.release} was not tried to the end: {skipped.reason}" for skipped in came.skipped]
        if came.interrupted:
            problems.append("the run was interrupted; --resume goes on")
        return records.all, problems


def _expectations(file: Path | None) -> Expectations | None:
    if file is not None and not file.exists():
        raise FileNotFoundError(f"there is no {file}")
    return load_expectations(file) if file else None


@contextlib.contextmanager
def _sigterm_is_an_interrupt() -> Iterator[None]:
    """A job that is cancelled gets SIGTERM, and keeps what is finished, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
