"""The command `diff`: what differs among any number of results. It needs no JAX."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.across_platforms import matched
from ..reports.diff import NothingToCompareError, comparison, difference, sides
from ..reports.results import load_results
from ..reports.visible import in_a_line
from .helping import add_command, add_implementations, add_patterns

WORSE = 1


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "diff",
        "Of two results, list the cells that are fixed, broken, changed, new or gone in the second one.\n"
        "Of more than two, print a table of the cells that differ. Implementations may take the place of results.",
        [
            "before after",
            "before after --only-common -k ordered",
            "results --implementation jax --implementation hostcb",
            "before after laptop=results",
        ],
        {
            0: "of two: no cell is worse; of more: the table was made",
            WORSE: "of two: a cell is broken, changed or gone",
            2: "nothing to compare",
        },
    )
    parser.add_argument(
        "results", nargs="+", metavar="[NAME=]DIR", help="what `run --results` was given; each is a column"
    )
    add_implementations(
        parser.add_argument,
        "a column for this implementation; repeat it. Only cells that all of them have are shown then",
    )
    add_patterns(parser.add_argument)
    parser.add_argument(
        "--only-common",
        action="store_true",
        help="only cells that all columns have: what one lacks is counted, and is no failure",
    )


def main(options: argparse.Namespace) -> int:
    results = {name: load_results(folder) for name, folder in _named(options.results).items()}
    columns, note = matched(sides(results, options.implementations, options.patterns))
    # Implementations and platforms have many cells that others cannot have.
    only_common = options.only_common or len(options.implementations) > 1 or bool(note)
    if note:
        print(in_a_line(note), end="\n\n" if len(columns) > 2 else "\n")
    if len(columns) > 2:
        print(comparison(columns, only_common=only_common))
        return 0
    found = difference(*columns, only_common=only_common)
    print(found)
    return WORSE if found.worse else 0


def _named(words: Sequence[str]) -> dict[str, Path]:
    """The results folders by name: the one given, otherwise the folder's own, or its path if two have the same."""
    given = [_name_and_folder(word) for word in words]
    own = [folder.resolve().name for _, folder in given]
    names = [
        name or (str(folder) if own.count(last) > 1 else last) for (name, folder), last in zip(given, own, strict=True)
    ]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise NothingToCompareError(f"two results are called {twice!r}: give each a name, NAME=DIR")
    return {name: folder for name, (_, folder) in zip(names, given, strict=True)}


def _name_and_folder(word: str) -> tuple[str, Path]:
    name, equals, folder = word.partition("=")
    # A folder's own name may have the sign.
    return (name, Path(folder)) if equals and not Path(word).is_dir() else ("", Path(word))
