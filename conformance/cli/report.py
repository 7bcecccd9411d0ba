"""The command `report`, which needs no JAX."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..reports.files import write
from ..reports.html import html
from ..reports.markdown import markdown
from ..reports.results import load_results
from .helping import add_command, add_results


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        "Make a report of a run's results: as Markdown or a page.",
        ["results", "results --html page.html --markdown summary.md"],
        {0: "the reports were made, also of failures", 2: "no results, or a file that cannot be written"},
    )
    add_results(parser.add_argument)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="for a CI job's summary; the default, printed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one page with the matrix and every cell")


def main(options: argparse.Namespace) -> int:
    runs = load_results(options.results)
    made = {options.html: html, options.markdown: markdown}
    for file, text_of in made.items():
        if file:
            write(file, text_of(runs))
    if written := [str(file) for file in made if file]:
        print(f"Written: {', '.join(written)}")
    else:
        print(markdown(runs), end="")
    return 0
