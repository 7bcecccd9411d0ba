"""A worker process: runs the cells that it receives, one at a time, and reports each before and after.

It reads cell ids from its standard input and writes JSON lines to its original standard output;
everything else that prints goes to standard error. What ends it charges the cell it had begun.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import traceback
from typing import Any, TextIO

import jax

from ..cases.harness.extensions import PLATFORM, extend
from ..cases.harness.running import run_case, try_callback_of
from ..implementations import Implementation, load
from ..oracle.history import Recorder
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import CaseCell, NotInReleaseError, TableCell, parse_cell
from ..spec.depths import Depth
from ..spec.topology import WrongPlatformError, parse_topology
from .aot import take_cell
from .devices import devices_of
from .execution import run_cell, run_table_cell
from .group_worker import join, serve_group_worker
from .parent import end_with_parent
from .private_jax import quick_locations, reuse_contexts
from .processes import TRIAL
from .run_info import run_info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topology", help="a name like cpu-8dev; with 0 devices for all there are")
    parser.add_argument("implementation", nargs="?", help="none to ask only what devices there are")
    parser.add_argument("--process", type=int, default=0, metavar="N", help="which of the topology's processes this is")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where the topology's processes meet")
    parser.add_argument(
        "--first-device", type=int, metavar="N", help="the first of this machine's GPUs for the process"
    )
    arguments = parser.parse_args()

    end_with_parent()
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # The suite reads the stage of an error from the stack, with JAX's own frames.
    jax.config.update("jax_traceback_filtering", "off")
    reuse_contexts()

    topology = parse_topology(arguments.topology)[0]
    try:
        os.environ[PLATFORM] = topology.platform
        extend(topology.platform)
        if arguments.coordinator:
            # Before the import of an implementation, which might start JAX's devices.
            join(topology, arguments.coordinator, arguments.process, arguments.first_device)
        # Load it before the devices exist: an implementation may change settings for them.
        implementation = load(arguments.implementation) if arguments.implementation else None
        if topology.depth is not Depth.RUN:
            quick_locations()
        devices = devices_of(topology)
    except WrongPlatformError as error:
        _report(reports, event="refused", reason=str(error))
        return
    _report(reports, event="ready", run_info=run_info(devices, topology))
    if implementation is not None and arguments.coordinator:
        serve_group_worker(reports, devices, implementation)
    elif implementation is not None:
        _serve(reports, devices, implementation)


def _serve(reports: TextIO, devices: list[jax.Device], implementation: Implementation) -> None:
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    for line in sys.stdin:
        command = json.loads(line)
        # The engine asks for the trial of a callback in place of an isolated case.
        trial, cell_id = command["do"] == TRIAL, command["cell"]
        _report(reports, event="begin", cell=cell_id)
        try:
            cell = parse_cell(cell_id)
            if isinstance(cell, CaseCell) and trial:
                outcome = try_callback_of(cell.case, implementation, devices)
            elif isinstance(cell, CaseCell):
                outcome = run_case(cell.case, implementation, devices)
            elif cell.topology.depth is not Depth.RUN:
                outcome = take_cell(cell, implementation, recorder, devices)
            elif isinstance(cell, TableCell):
                outcome = run_table_cell(cell, implementation, recorder, devices)
            else:
                outcome = run_cell(cell, implementation, recorder, devices)
        except NotInReleaseError as error:
            # The cell was planned for another release than this worker's.
            outcome = Outcome(Verdict.UNSUPPORTED, None, error.reason, anomaly="not applicable")
        except Exception:
            reason = traceback.format_exc(limit=-4)
            outcome = Outcome(Verdict.HARNESS_ERROR, None, reason)
        _report(reports, event="end", cell=cell_id, outcome=outcome.as_json())


def _report(reports: TextIO, **line: Any) -> None:
    reports.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
