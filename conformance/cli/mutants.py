"""The command `mutants`."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.first_cells import FIRST_CELLS, kills_in
from ..engine.options import positive
from ..engine.results_folder.locking import FolderLock
from .helping import add_command, add_deadline

if TYPE_CHECKING:
    from ..mutants.mutant import Mutant


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "mutants",
        "Run the cells that catch each mutant, a hostcb with one defect, with it and without it.",
        ["-k lost -n 1", "--results results/mutants", "--rank results/mutants"],
        {
            0: "every mutant was killed for the right reason",
            1: "a mutant survived, or a cell failed without one",
            2: "bad input: no mutant was tried",
        },
    )
    parser.add_argument(
        "-k",
        dest="patterns",
        action="append",
        default=[],
        metavar="TEXT",
        help="only mutants whose name contains this text or matches it as a glob; may be repeated",
    )
    parser.add_argument("-n", dest="workers", type=positive(int), default=2, help="worker processes")
    parser.add_argument(
        "--results", type=Path, default=Path("results/mutants"), metavar="DIR", help="where the results are written"
    )
    add_deadline(parser.add_argument, 30.0)
    parser.add_argument(
        "--rank",
        type=Path,
        metavar="DIR",
        help=f"try no mutant: write the cells that `run` begins with, {FIRST_CELLS.name}, from the kill matrix in DIR",
    )


def main(options: argparse.Namespace) -> int:
    from ..mutants.ranking import ranking_of
    from ..mutants.trials import Options, run

    if options.rank:
        FIRST_CELLS.write_text(ranking_of(options.rank))
        print(f"{len(kills_in(FIRST_CELLS.read_text()))} cells are in {FIRST_CELLS}")
        return 0
    chosen = _chosen(options.patterns)
    if not chosen:
        print(f"ERROR: no mutant's name contains {' or '.join(options.patterns)}", file=sys.stderr)
        return 2
    with FolderLock(options.results) as lock:
        lock.acquire()
        matrix = run(chosen, Options(options.results, options.workers, options.deadline))
    print(matrix.summary())
    return matrix.exit_code


def _chosen(patterns: Sequence[str]) -> list[Mutant]:
    from ..mutants import MUTANTS

    def wanted(name: str) -> bool:
        return any(pattern in name or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return [mutant for mutant in MUTANTS if not patterns or wanted(mutant.name)]
