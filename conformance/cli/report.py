"""The commands that need no JAX: `report`, `diff` and `compare`, and `merge`, which joins results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.locking import FolderInUseError
from ..planning.keywords import KeywordError
from ..reports import table_pages
from ..reports.comparison import ComparisonError, comparison
from ..reports.diff import NothingToCompareError, difference
from ..reports.html import html
from ..reports.junit import junit
from ..reports.markdown import markdown
from ..reports.matrix_picture import matrix_picture
from ..reports.merging import MergeError
from ..reports.results import RunRecord, UnreadableResultsError, load_results
from ..reports.traces import file_name, trace
from ..reports.visible import in_a_line
from ..spec.package import COMMAND
from . import bundles, merge
from .errors import words_of
from .helping import add_command, add_version

COMMANDS = ("report", "diff", "compare", "merge", *bundles.COMMANDS)

WORSE, UNUSABLE = 1, 2

UNUSABLE_BECAUSE = (
    ComparisonError,
    FolderInUseError,
    KeywordError,
    MergeError,
    NothingToCompareError,
    UnreadableResultsError,
)


def add_parsers(commands: Any) -> None:
    """Add these commands to the subparsers of the command line."""
    report = add_command(
        commands,
        "report",
        "make a report of what a run has written",
        "Make reports of a run's results: as Markdown, a page, a picture, JUnit's XML, or traces for Perfetto.",
        ["results", "results --html page.html --junit junit.xml", "results --trace traces"],
        {0: "the reports were made, also of failures", UNUSABLE: "no results, or a file that cannot be written"},
    )
    report.add_argument("results", type=Path, metavar="DIR", help="what `run --results` was given")
    report.add_argument("--junit", type=Path, metavar="FILE", help="XML for the test view of a CI system")
    report.add_argument("--markdown", type=Path, metavar="FILE", help="for a CI job's summary; the default, printed")
    report.add_argument("--html", type=Path, metavar="FILE", help="one page with the matrix and every cell")
    report.add_argument("--svg", type=Path, metavar="FILE", help="a picture of the matrix, of hostcb's and JAX's cells")
    report.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="for Perfetto: a file for each cell with a history; with --cell, a FILE",
    )
    report.add_argument("--cell", metavar="ID", help="with --trace: the history of this cell alone")
    report.set_defaults(read=_report)
    diff = add_command(
        commands,
        "diff",
        "what became different from one run to another",
        "List the cells that are fixed, broken, changed, new or gone from one run to another.",
        ["before after", "before after --only-common -k ordered", "results --implementations jax hostcb --only-common"],
        {0: "no cell is worse", WORSE: "a cell is broken, changed or gone", UNUSABLE: "nothing to compare"},
    )
    diff.add_argument("before", type=Path, metavar="A", help="a results directory")
    diff.add_argument(
        "after", type=Path, nargs="?", metavar="B", help="another one, which is judged; A again with --implementations"
    )
    diff.add_argument(
        "-k",
        dest="patterns",
        action="append",
        default=[],
        metavar="EXPR",
        help="only cells whose id answers to this, as for `run`; may be repeated",
    )
    diff.add_argument(
        "--only-common",
        action="store_true",
        help="only cells that both have: what one lacks is counted, and is no failure",
    )
    diff.add_argument(
        "--implementations",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="compare this implementation's cells in A with that one's in B, by their ids without the implementation",
    )
    diff.set_defaults(read=_diff)
    compare = add_command(
        commands,
        "compare",
        "the cells that differ among runs, implementations or platforms",
        "Show results side by side, a column for each run, implementation or platform.",
        ["before after laptop=results", "results --by-implementation --html page.html"],
        {0: "the table was made, also where cells differ", UNUSABLE: "nothing to compare"},
    )
    compare.add_argument("results", nargs="+", metavar="[NAME=]DIR", help="results directories, each a column")
    compare.add_argument("--by-implementation", action="store_true", help="a column for each implementation")
    compare.add_argument("--by-platform", action="store_true", help="a column for each platform")
    compare.add_argument(
        "-k", dest="patterns", action="append", default=[], metavar="EXPR", help="only these cells, as for `run`"
    )
    compare.add_argument("--html", type=Path, metavar="FILE", help="the table as a page, with witnesses and histories")
    compare.set_defaults(read=_compare)
    merge.add_parser(commands)
    bundles.add_parsers(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """These commands alone, where JAX may not be installed."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    add_version(parser)
    add_parsers(parser.add_subparsers(dest="command", required=True))
    return read(parser.parse_args(arguments))


def read(options: argparse.Namespace) -> int:
    try:
        code: int = options.read(options)
    except (*UNUSABLE_BECAUSE, OSError) as error:
        print(f"ERROR: {in_a_line(words_of(error))}", file=sys.stderr)
        return UNUSABLE
    return code


def _report(options: argparse.Namespace) -> int:
    runs = load_results(options.results)
    if options.cell and not options.trace:
        raise UnreadableResultsError("--cell is for --trace, which writes the history of one cell")
    if options.trace:
        _write_traces(runs, options.trace, options.cell)
    if options.junit:
        _write(options.junit, junit(runs))
    if options.html:
        _write(options.html, html(runs))
    if options.svg:
        _write(options.svg, matrix_picture(runs))
    if options.markdown:
        _write(options.markdown, markdown(runs))
    written = [file for file in (options.trace, options.junit, options.html, options.svg, options.markdown) if file]
    if written:
        print(f"Written: {', '.join(map(str, written))}")
    else:
        print(markdown(runs), end="")
    return 0


def _write_traces(runs: Sequence[RunRecord], path: Path, cell_id: str | None) -> None:
    cells = [cell for run in runs for cell in run.cells if cell_id in (None, cell.id)]
    if cell_id and not cells:
        raise UnreadableResultsError(f"the results have no cell {cell_id}")
    kept = [cell for cell in cells if cell.history]
    if not kept:
        raise UnreadableResultsError(
            f"{cell_id or 'no cell of the results'} has {'no' if cell_id else 'a'} history to trace: "
            "`run --histories` keeps those of cells that pass, and a fault has none"
        )
    if cell_id:
        _write(path, trace(kept[0]))
        return
    path.mkdir(parents=True, exist_ok=True)
    for cell in kept:
        _write(path / file_name(cell), trace(cell))


def _write(path: Path, text: str) -> None:
    # A witness may quote bytes that are not text; they must not prevent the report.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _diff(options: argparse.Namespace) -> int:
    if options.after is None and not options.implementations:
        raise NothingToCompareError("name two results directories, or one with --implementations OLD NEW")
    before, after = load_results(options.before), load_results(options.after or options.before)
    implementations = tuple(options.implementations) if options.implementations else None
    found = difference(before, after, options.patterns, implementations, options.only_common)
    print(found)
    return WORSE if found.worse else 0


def _compare(options: argparse.Namespace) -> int:
    table = comparison(
        {name: load_results(folder) for name, folder in _named(options.results).items()},
        by_implementation=options.by_implementation,
        by_platform=options.by_platform,
        patterns=options.patterns,
    )
    print(table_pages.markdown(table), end="")
    if options.html:
        _write(options.html, table_pages.html(table))
    return 0


def _named(words: Sequence[str]) -> dict[str, Path]:
    """The results folders by name: the one given, otherwise the folder's own, or its path if two have the same."""
    given = [_name_and_folder(word) for word in words]
    own = [folder.resolve().name for _, folder in given]
    names = [
        name or (str(folder) if own.count(last) > 1 else last) for (name, folder), last in zip(given, own, strict=True)
    ]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ComparisonError(f"two results are called {twice!r}: give each a name, NAME=DIR")
    return {name: folder for name, (_, folder) in zip(names, given, strict=True)}


def _name_and_folder(word: str) -> tuple[str, Path]:
    name, equals, folder = word.partition("=")
    # A folder's own name may have the sign.
    return (name, Path(folder)) if equals and not Path(word).is_dir() else ("", Path(word))
