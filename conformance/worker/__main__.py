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
from typing import Any, TextIO

import jax

from ..cases.harness.extensions import PLATFORM, extend
from ..implementations import load
from ..spec.depths import Depth
from ..spec.topology import WrongPlatformError, parse_topology
from .devices import devices_of
from .private_jax import quick_locations, reuse_contexts
from .processes import end_with_parent
from .run_info import run_info
from .serving import join, serve


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
    if implementation is not None:
        serve(reports, devices, implementation)


def _report(reports: TextIO, **line: Any) -> None:
    reports.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
