"""`run --spread hosts`: the run of a cluster's job, with one process on each host."""

from __future__ import annotations

from dataclasses import replace

from ..engine.machines.job_hosts import Coordinator, Place, detected, serve
from ..engine.options import ConflictingOptionsError, RunOptions
from ..engine.preparation import prepare
from ..engine.requirements import require_pytest
from ..engine.results_folder.locking import FolderLock
from ..engine.run import run
from ..reports.provenance import plan_digest
from ..reports.report import Report
from ..spec.topology import Topology

CPU_DEVICES = 2
"""The devices of each process, on CPU, if no topology is named."""


def run_distributed(options: RunOptions) -> Report | int:
    """The report of the job's first process; the exit code of the others, which is the same."""
    if (options.workers or 1) > 1:
        raise ConflictingOptionsError("--spread hosts runs one cell at a time in all processes: it takes no -n")
    require_pytest(1)
    place = detected()
    if not (options.cells or options.topologies):
        options = replace(options, topologies=(_usual(place, options.platform),))
    # Every process plans, so that bad input is reported on every host, and none waits for another one.
    prepared = prepare(options)
    if wrong := [cell for cell in prepared.cells if cell.topology.processes != place.processes]:
        needed = f"{wrong[0].id} needs {wrong[0].topology.processes}"
        raise ConflictingOptionsError(f"this job has {place.processes} processes, and {needed}")
    plan = plan_digest(cell.id for cell in prepared.cells)
    if place.process:
        return serve(place, plan)
    coordinator = Coordinator(place, plan)
    code = 2
    try:
        coordinator.gather()
        with FolderLock(options.results) as lock:
            lock.acquire()
            report = run(prepared, 1, coordinator)
        code = report.exit_code
        return report
    finally:
        coordinator.end(code)


def _usual(place: Place, platform: str) -> str:
    if platform != "cpu":
        named = f"{platform}-{place.processes}x4"
        raise ConflictingOptionsError(
            f"--spread hosts on {platform} needs --devices: for example {named} for hosts of four devices"
        )
    return Topology(platform, place.processes * CPU_DEVICES, processes=place.processes).name
