"""The command `minimise`."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..engine.cell_runner import CellRunner
from ..engine.options import add_platform, positive
from ..expectations.entries import load_expectations
from ..minimising.failures import Counts, failure_of
from ..oracle.verdicts import Verdict
from ..reports.table import several
from ..spec.errors import CommandError
from ..spec.topology import WrongPlatformError
from ..standalone import NOT_CHECKED
from ..worker.processes import WorkerStartError
from .helping import add_command, add_deadline
from .repro import program

if TYPE_CHECKING:
    from ..planning.cells import Cell

FOUND, INTERRUPTED, PASSES = 0, 1, 3

MANY_RUNS = 20
"""After fewer runs, a failure that comes by chance may not have shown."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "minimise",
        "Leave out or simplify transforms, data, devices and configuration while the same anomaly stays.",
        ["jax/debug_callback_ordered/jit.vmap.while_cond/cpu-8dev --program bug.py"],
        {
            FOUND: "the search ended; the last line has the smallest cell",
            INTERRUPTED: "interrupted; the last line has the smallest cell so far",
            2: "the cell cannot run",
            PASSES: "the cell passes in all runs",
        },
    )
    parser.add_argument("cell_id", metavar="CELL", help="the id of a cell that fails")
    add_platform(parser.add_argument)
    parser.add_argument(
        "--runs",
        type=positive(int),
        default=3,
        metavar="N",
        help="runs of the first and of the last cell, and of each other one if the failure comes by chance; default 3",
    )
    add_deadline(parser.add_argument, what="for each run")
    parser.add_argument("--program", type=Path, metavar="FILE", help="where to write the smallest cell's own program")


def main(options: argparse.Namespace) -> int:
    from ..engine.preparation import cell_named, known_failures_of
    from ..engine.run import task_of
    from ..minimising.steps import simpler

    found = cell_named(options)
    expectations = load_expectations(known_failures_of(found.topology.platform))
    known = partial(expectations.explaining, jax_version=importlib.metadata.version("jax"))
    if options.program and not options.program.parent.is_dir():
        raise FileNotFoundError(f"--program {options.program}: there is no folder {options.program.parent}")
    with TemporaryDirectory() as folder:
        runner = CellRunner(Path(folder) / "worker.log")

        def run(cell: Cell) -> str | None:
            try:
                # Each run has a process of its own: some failures depend on the process.
                outcome = runner.run_alone(task_of(cell, options.deadline))
            except (WorkerStartError, WrongPlatformError) as error:
                if cell.id == options.cell_id:
                    raise
                # A smaller topology may not work here. That is no reason to stop.
                return str(error)
            if outcome.verdict is Verdict.HARNESS_ERROR and cell.id == options.cell_id:
                raise CommandError(f"the suite itself failed in {cell.id}: {outcome.reason}")
            return failure_of(outcome)

        counts: Counts[Cell] = Counts(run, options.runs)
        failure: str | None = None

        def accepted(step: str, cell: Cell) -> None:
            nonlocal found
            found = cell
            print(f"{step}: {cell.id}", flush=True)

        code = FOUND
        try:
            failure = counts.observe(found)
            if failure is None:
                print(f"{found.id} passes {counts.how_often(found)}: there is nothing to make smaller.")
                if entry := known(found.id, words=Verdict.PASS.value):
                    print(entry.report[0])
                if options.runs < MANY_RUNS:
                    print("If it fails by chance, ask for more runs with --runs.")
                return PASSES
            print(f"{found.id}: {failure}, {counts.how_often(found)}", flush=True)
            counts.smallest(found, simpler, accepted)
        except KeyboardInterrupt:
            print("interrupted; smaller cells may fail, too", file=sys.stderr)
            code = INTERRUPTED
    if failure is None:
        return INTERRUPTED
    if entry := known(found.id, words=failure) or known(options.cell_id, words=failure):
        print(*entry.report, sep="\n")
    print(f"smallest of {several(len(counts.found), 'cell')}: {found.id}: {failure}, {counts.how_often(found)}")
    if options.program:
        _write(options.program, found, failure)
    return code


def _write(file: Path, cell: Cell, failure: str) -> None:
    from ..standalone.programs import NotStandaloneError, standalone_program

    try:
        if unchecked := [kind for kind in NOT_CHECKED if kind in failure]:
            raise NotStandaloneError(f"a program without it does not look for the anomaly {unchecked[0]!r}")
        file.write_text(standalone_program(cell))
    except NotStandaloneError as error:
        file.write_text(program(cell))
        print(f"NOTE: {file} imports the suite: {error}", file=sys.stderr)
