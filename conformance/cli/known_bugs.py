"""The command `known-bugs`: the page about reported bugs, from runs of their cells with many releases."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..planning.cells import parse_cell
from ..releases.known_bugs import load_known_bugs, outcomes_of
from ..releases.known_bugs_page import page
from ..releases.records import Record
from ..releases.table import table_of, tried
from ..reports.table import several
from ..spec.package import COMMAND
from .helping import add_command
from .release_options import add_probing, check_page, environments_of, releases_of
from .releases import add_journal, recorded, report_problems
from .scheduling import check_scheduler

INTRODUCTION = """\
`{command} known-bugs` made this page from [{file}](../{file}), and `nox -s known-bugs` makes it again. The list
has reported bugs of JAX's own callbacks that tell releases apart. "Before" is what was found with small programs,
before there was a cell. "Here" is what the cells show: {runs} with each of {releases} from {first} to {last},
on CPU devices of a machine with {cores}. A range like `0.4.31 to 0.6.1` has only the releases that ran, which are
{versions}.

A bug is bad with a release if one of its cells fails there. One run that passes does not prove that a deadlock or a
race is gone. Below the table each bug has its cells, with what came of them and the first line of the first witness.
"Differs" names each release of which the cells show something else than what was found before, and says why.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "known-bugs",
        "Run the cells of reported bugs with many releases of JAX, and make a page of it.",
        ["0.6.1 0.6.2", "--resume --markdown docs/known-bugs.md"],
        {
            0: "the page was made, and agrees with the list",
            1: "not all cells ran, or a difference lacks its explanation",
            2: "nothing could be tried",
        },
    )
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help="as for `releases`; by default those of the list"
    )
    parser.add_argument(
        "--list",
        type=Path,
        default=Path("ci/known_bugs.toml"),
        metavar="FILE",
        help="the list of bugs, by default that of a checkout",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the page; otherwise it is printed")
    add_probing(parser)
    add_journal(parser, "results/known-bugs.jsonl")


def main(options: argparse.Namespace) -> int:
    check_page(options.markdown)
    check_scheduler(options.scheduler)
    known = load_known_bugs(options.list)
    for cell in known.cells:
        parse_cell(cell, any_release=True)
    environments = environments_of(options)
    wanted, _ = releases_of(options.versions or known.releases, None, environments)
    kept, problems = recorded(options, known.cells, wanted, environments)
    # The journal may have more.
    records = [record for record in kept if record.release in wanted and record.cell in known.cells]
    releases, outcomes = tried(records, wanted), outcomes_of(records)
    if not releases:
        return report_problems(problems)
    table = table_of(records, wanted, known.cells)
    versions = [release.label for release in releases]
    introduction = INTRODUCTION.format(
        command=COMMAND,
        file=options.list,
        runs=_runs(records),
        releases=several(len(releases), "release"),
        first=versions[0],
        last=versions[-1],
        cores=several(os.cpu_count() or 1, "core"),
        versions=", ".join(versions),
    )
    made = page(known, table, releases, outcomes, introduction)
    if options.markdown and problems:
        # The page of an earlier run has more.
        problems.append(f"{options.markdown} was not written, since not all cells ran with all releases")
    elif options.markdown:
        options.markdown.write_text(made, encoding="utf-8", errors="backslashreplace")
    else:
        print(made, end="")
    return report_problems([*problems, *known.problems(releases, outcomes)])


def _runs(records: Sequence[Record]) -> str:
    counts = {*Counter((record.release, record.cell) for record in records).values()}
    if counts == {1}:
        return "one run"
    return f"{min(counts)} to {max(counts)} runs" if len(counts) > 1 else f"{min(counts)} runs"
