"""The command `report`, which needs no JAX."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.files import write
from ..reports.html import html
from ..reports.markdown import markdown
from ..reports.results import RunRecord, UnreadableResultsError, load_results
from ..reports.traces import file_name, trace
from .helping import add_command, add_results


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        "Make reports of a run's results: as Markdown, a page, or traces for Perfetto.",
        ["results", "results --html page.html --markdown summary.md", "results --trace traces"],
        {0: "the reports were made, also of failures", 2: "no results, or a file that cannot be written"},
    )
    add_results(parser.add_argument)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a CI job's summary; the default, printed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one page with the matrix and every cell")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="for Perfetto: a file for each cell that has a history, because it failed",
    )


def main(options: argparse.Namespace) -> int:
    runs = load_results(options.results)
    if options.trace:
        _write_traces(runs, options.trace)
    made = {options.html: html, options.markdown: markdown}
    for file, text_of in made.items():
        if file:
            write(file, text_of(runs))
    if written := [str(file) for file in (options.trace, *made) if file]:
        print(f"Written: {', '.join(written)}")
    else:
        print(markdown(runs), end="")
    return 0


def _write_traces(runs: Sequence[RunRecord], folder: Path) -> None:
    kept = [cell for run in runs for cell in run.cells if cell.history]
    if not kept:
        raise UnreadableResultsError("no cell has a history to trace: cells that pass have none, nor cases")
    folder.mkdir(parents=True, exist_ok=True)
    for cell in kept:
        write(folder / file_name(cell), trace(cell))
