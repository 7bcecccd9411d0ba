"""The command `mutants`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..engine.first_cells import FIRST_CELLS
from ..engine.options import ConflictingOptionsError, positive
from ..engine.results_folder.locking import FolderLock
from ..planning.keywords import any_of
from .helping import add_command, add_deadline, add_patterns


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "mutants",
        "Run the cells that catch each mutant, a hostcb with one defect, with it and without it.",
        ["-k lost -n 1", "--results results/mutants", "--rank"],
        {
            0: "every mutant was killed for the right reason",
            1: "a mutant survived, or a cell failed without one",
            2: "bad input: no mutant was tried",
        },
    )
    add_patterns(parser.add_argument, "mutants whose name matches this, as for pytest: 'lost or doubled'")
    parser.add_argument("-n", dest="workers", type=positive(int), default=2, help="worker processes")
    parser.add_argument(
        "--results", type=Path, default=Path("results/mutants"), metavar="DIR", help="where the results are written"
    )
    add_deadline(parser.add_argument, 30.0)
    parser.add_argument(
        "--rank",
        action="store_true",
        help=f"if all mutants are killed, write the cells that `run` begins with, {FIRST_CELLS.name}",
    )


def main(options: argparse.Namespace) -> int:
    from ..mutants import MUTANTS
    from ..mutants.ranking import ranking_of
    from ..mutants.trials import run

    if options.rank and options.patterns:
        raise ConflictingOptionsError("--rank is for all mutants: leave out -k")
    wanted = any_of(options.patterns or ["*"], [mutant.name for mutant in MUTANTS], "mutant")
    chosen = [mutant for mutant in MUTANTS if wanted(mutant.name)]
    with FolderLock(options.results) as lock:
        lock.acquire()
        matrix = run(chosen, options.results, options.workers, options.deadline)
    print(matrix.summary())
    if options.rank and not matrix.exit_code:
        FIRST_CELLS.write_text(ranking_of(matrix))
    return matrix.exit_code
