"""One cell, run and judged as in a run: what a program of `repro` calls."""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import jax

from ..implementations import load
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import CaseCell, Cell, parse_cell
from .devices import devices_of
from .process_group import start_group
from .serving import Worker

DEADLINE = 60.0


def run_alone(cell_id: str) -> NoReturn:
    """Run a cell, print its history and its verdict, and end this process."""
    cell = parse_cell(cell_id)
    deadline = (isinstance(cell, CaseCell) and cell.case.deadline) or DEADLINE
    run = _in_processes if cell.topology.in_several_processes else _here
    outcome, history = run(cell, deadline)
    for event in history:
        print(json.dumps(event))
    print(f"{cell_id}: {outcome.label}" + (f" at {outcome.stage.value}" if outcome.stage else ""))
    if outcome.reason:
        print(outcome.reason)
    sys.exit(outcome.verdict is not Verdict.PASS)


def _here(cell: Cell, deadline: float) -> tuple[Outcome, list[dict[str, Any]]]:
    # A cell that crashes or hangs ends this process too, with the stacks of its threads in place of a verdict.
    faulthandler.enable()
    faulthandler.dump_traceback_later(deadline, exit=True)
    # The stage of a failure is read off the stack, JAX's own frames included.
    jax.config.update("jax_traceback_filtering", "off")
    # Before the devices exist: an implementation may have settings for them.
    implementation = load(cell.implementation)
    worker = Worker(devices_of(cell.topology), implementation)
    outcome = Outcome.from_json(worker.run(cell)["outcome"])
    faulthandler.cancel_dump_traceback_later()
    # A case checks while it runs, and records no history to show.
    return outcome, [event.as_json() for event in worker.recorder.history().events]


def _in_processes(cell: Cell, deadline: float) -> tuple[Outcome, list[dict[str, Any]]]:
    log = Path.cwd() / "cell.log"
    flags = cell.case.xla_flags if isinstance(cell, CaseCell) else ()
    processes = start_group(cell.topology, cell.implementation, log, flags, quick=())
    outcome = processes.run(cell.id, deadline)
    if not processes.buried:
        processes.finish()
    print(f"the standard error of each process: {log.stem}.process-*{log.suffix}")
    return outcome, outcome.history
