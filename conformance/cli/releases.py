"""The command `releases`: a table of cells by release, or the page of known bugs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.interrupts import terminated_like_interrupted
from ..engine.options import ConflictingOptionsError, positive
from ..engine.progress import Progress
from ..expectations.entries import Expectations, load_expectations
from ..oracle.verdicts import Outcome, Verdict
from ..releases.installing import Installer
from ..releases.journal import RunJournal
from ..releases.judging import harness_errors, problems_of
from ..releases.known_bugs import load_known_bugs
from ..releases.known_bugs_page import page
from ..releases.release import Release, ReleaseError, Skipped
from ..releases.table import table_of
from ..releases.trying import run_cells
from ..reports.table_pages import html, markdown
from .helping import add_command, add_patterns
from .release_options import add_installing, cells_of, installer_of, releases_of, stressed

WORSE = 1


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "releases",
        "Run cells with several releases of JAX, each in an environment of its own, and print a table of what changed.",
        [
            "0.6.2 0.7.0 0.8.3",
            "--last 8 -k 'jax and ordered' --html releases.html",
            "0.6.0..0.8.3 --resume",
            "--known-bugs ci/known_bugs.toml --markdown docs/known-bugs.md",
        ],
        {
            0: "all cells ran with all releases",
            1: "not all of them ran, the suite failed, or they are not as --expectations or --known-bugs say",
            2: "nothing could be tried",
        },
    )
    add = parser.add_argument
    add(
        "versions",
        nargs="*",
        metavar="VERSION",
        help="releases: 0.6.2, 0.6.2:0.6.1 for jax with another jaxlib, 0.6.0..0.8.3 for all between",
    )
    add("--last", type=positive(int), metavar="N", help="the newest N releases")
    add("--cell", action="append", default=[], metavar="ID", dest="cell_ids", help="may be repeated")
    add_patterns(add)
    add("--plan", type=Path, metavar="FILE", help="a file with the id of a cell in each line")
    add("--repeat", type=positive(int), default=1, metavar="N", help="how often each cell runs")
    add_installing(parser)
    journal = Path("results/releases.jsonl")
    add("--journal", type=Path, default=journal, metavar="FILE", help="keeps finished runs")
    add("--markdown", type=Path, metavar="FILE", help="a file for what is printed otherwise")
    add("--html", type=Path, metavar="FILE", help="the table as a page, with witnesses and histories")
    add("--expectations", type=Path, metavar="FILE", help="known failures of these releases: others are an error")
    add("--known-bugs", type=Path, metavar="FILE", help="a list of bugs with their cells and releases: print its page")


def main(options: argparse.Namespace) -> int:
    for file in filter(None, (options.markdown, options.html)):
        # That a page can be written is asked before all the runs, and not after them.
        if file.is_dir() or not file.parent.is_dir():
            raise ConflictingOptionsError(f"{file} cannot be written: name a file in a folder that is there")
    known = load_known_bugs(options.known_bugs) if options.known_bugs else None
    expected = _expectations(options.expectations)
    cells = known.cells if known else cells_of(options, options.cell_ids, options.plan, newest="")
    with installer_of(options, options.journal.parent) as installer, stressed(options.stress):
        wanted = options.versions or ([] if options.last or not known else known.releases)
        releases = releases_of(wanted, options.last, installer)
        outcomes, skipped, problems = _recorded(options, cells, releases, installer)
    if known and outcomes:
        printed = page(known, options.known_bugs, outcomes)
        judged = [*known.problems(outcomes)]
    else:
        judged = [*(problems_of(outcomes, cells, expected) if expected else harness_errors(outcomes))]
        table = table_of(outcomes, cells, skipped, [*problems, *judged])
        printed = markdown(table)
        if options.html:
            options.html.write_text(html(table), encoding="utf-8", errors="backslashreplace")
    if not options.markdown:
        print(printed, end="")
    elif problems:
        problems.append(f"{options.markdown} was not written, since not all cells ran with all releases")
    else:
        options.markdown.write_text(printed, encoding="utf-8", errors="backslashreplace")
    for problem in (*problems, *judged):
        print(f"ERROR: {problem}", file=sys.stderr)
    return WORSE if problems or judged else 0


def _recorded(
    options: argparse.Namespace, cells: Sequence[str], releases: Sequence[Release], installer: Installer
) -> tuple[Mapping[tuple[Release, str], list[Outcome]], list[Skipped], list[str]]:
    """The outcomes of the cells, also those that the journal has already; what did not run; what went wrong."""
    skipped: list[Skipped] = []
    problems: list[str] = []
    conditions = f"deadline {options.deadline:g}, Python {options.python}{', stress' * options.stress}"
    with contextlib.closing(RunJournal(options.journal, options.resume)) as journal, terminated_like_interrupted():
        outcomes = _known(journal, conditions, cells, releases)
        left = {release: _missing(outcomes, release, cells, options.repeat) for release in releases}
        progress = Progress(max(1, sum(sum(missing.values()) for missing in left.values())))
        try:
            for release, missing in left.items():
                if not missing:
                    continue
                try:
                    for cell, outcome in _runs(installer, release, missing, options):
                        journal.add(outcome.as_json(), release.jax, release.jaxlib, cell, conditions)
                        outcomes.setdefault((release, cell), []).append(outcome)
                        progress.advance(f"{release.label} {cell}", acceptable=True)
                except ReleaseError as error:
                    skipped.append(Skipped(release.label, str(error)))
                    problems.append(f"{release.label} was not tried to the end: {error}")
                # The next environment has its disk.
                installer.remove(release)
        except KeyboardInterrupt:
            problems.append("the run was interrupted; --resume goes on")
        progress.finish()
    if skipped and not outcomes:
        raise ReleaseError(skipped[0].reason)
    return outcomes, skipped, problems


def _runs(
    installer: Installer, release: Release, missing: Mapping[str, int], options: argparse.Namespace
) -> Iterator[tuple[str, Outcome]]:
    environment = installer.environment(release)
    log = options.journal.with_suffix(".log")
    return run_cells(environment, missing, deadline=options.deadline, log=log)


def _known(
    journal: RunJournal, conditions: str, cells: Sequence[str], releases: Sequence[Release]
) -> dict[tuple[Release, str], list[Outcome]]:
    recorded = journal.read()
    outcomes: dict[tuple[Release, str], list[Outcome]] = {}
    for release in releases:
        for cell in cells:
            ran = map(Outcome.from_json, recorded.get((release.jax, release.jaxlib, cell, conditions), ()))
            # The next run may show what an error of the suite has not.
            if counted := [outcome for outcome in ran if outcome.verdict is not Verdict.HARNESS_ERROR]:
                outcomes[release, cell] = counted
    return outcomes


def _missing(
    outcomes: Mapping[tuple[Release, str], Sequence[Outcome]], release: Release, cells: Sequence[str], repeat: int
) -> dict[str, int]:
    """The cells that are still to run, and how often."""
    return {cell: more for cell in cells if (more := repeat - len(outcomes.get((release, cell), ()))) > 0}


def _expectations(file: Path | None) -> Expectations | None:
    if file is not None and not file.exists():
        raise FileNotFoundError(f"there is no {file}")
    return load_expectations(file) if file else None
