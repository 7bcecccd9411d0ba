"""A worker process: runs the cells it is told, one at a time, and reports each before and after.

It reads cell ids from its standard input and writes JSON lines to its original standard output;
everything else that prints goes to standard error. What ends it charges the cell it had begun.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from typing import Any, TextIO

import jax

from conformance.cells import FaultCell, TableCell, parse_cell
from conformance.execution import run_cell, run_table_cell
from conformance.faults import run_fault
from conformance.history import Recorder
from conformance.implementations import Implementation, load
from conformance.run_info import run_info
from conformance.topology import Topology, WrongPlatformError, check_devices
from conformance.verdicts import Outcome, Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platform")
    parser.add_argument("devices", type=int, help="how many devices cells get; 0 for all there are")
    parser.add_argument("implementation", nargs="?", help="none to ask only what devices there are")
    arguments = parser.parse_args()

    _end_with_parent()
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # The stage of an error is read off the stack, JAX's own frames included.
    jax.config.update("jax_traceback_filtering", "off")

    try:
        # Before the devices exist: an implementation may have settings for them.
        implementation = load(arguments.implementation) if arguments.implementation else None
        devices = _devices(arguments.platform, arguments.devices)
    except WrongPlatformError as error:
        _report(reports, event="refused", reason=str(error))
        return
    _report(reports, event="ready", run_info=run_info(devices))
    if implementation is not None:
        _serve(reports, devices, implementation)


def _end_with_parent() -> None:
    """Where the system can do it: a cell that hangs must not outlive a run that was killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _devices(platform: str, count: int) -> list[jax.Device]:
    try:
        devices = jax.devices()
    except Exception as error:
        # JAX says this in many ways, a bare AssertionError among them.
        words = str(error) or f"it says no more than {type(error).__name__}; is its plugin installed?"
        raise WrongPlatformError(f"asked for {platform} devices, JAX found none: {words}") from error
    version = getattr(devices[0].client, "platform_version", "")
    check_devices(Topology(platform, count), [device.platform for device in devices], version)
    return devices[:count] if count else devices


def _serve(reports: TextIO, devices: list[jax.Device], implementation: Implementation) -> None:
    recorder = Recorder({device.id: index for index, device in enumerate(devices)})
    for line in sys.stdin:
        cell_id = line.strip()
        _report(reports, event="begin", cell=cell_id)
        try:
            cell = parse_cell(cell_id)
            if isinstance(cell, FaultCell):
                outcome = run_fault(cell.fault, implementation, devices)
            elif isinstance(cell, TableCell):
                outcome = run_table_cell(cell, implementation, recorder, devices)
            else:
                outcome = run_cell(cell, implementation, recorder, devices)
        except Exception:
            reason = traceback.format_exc(limit=-4)
            outcome = Outcome(Verdict.HARNESS_ERROR, None, reason)
        _report(reports, event="end", cell=cell_id, outcome=outcome.as_json())


def _report(reports: TextIO, **line: Any) -> None:
    reports.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
