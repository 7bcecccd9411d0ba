"""From options to what is to be run: the plan, the cells of it that were chosen, the expectations."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance import selection as selecting
from conformance.cells import Plan, parse_cell
from conformance.expectations import load_expectations
from conformance.processes import WorkerProcess
from conformance.runner import Options, Run
from conformance.smoke import smoke
from conformance.topology import Topology

IMPLEMENTATIONS = ("hostcb", "jax")
CPU_DEVICE_COUNTS = selecting.CPU_DEVICE_COUNTS
EXPECTATIONS = Path(__file__).parent.parent / "ci" / "expectations"


def prepare(options: Any, patterns: Sequence[str] = ()) -> Run:
    """What the options ask for, ready to be run."""
    if options.cell_ids:
        cells = tuple(parse_cell(cell_id) for cell_id in dict.fromkeys(options.cell_ids))
        selection = Plan(cells, ())
        # The cells say where they run.
        options.platform = cells[0].topology.platform
        options.devices = options.devices or tuple(sorted({cell.topology.device_count for cell in cells}))
    plan = plan_of(options)
    if not options.cell_ids:
        selection = plan.select(patterns)
    path = options.expectations or EXPECTATIONS / f"{options.platform}.toml"
    return Run(
        _whole_plan(plan, options.platform),
        selection,
        load_expectations(path),
        Options(options.platform, options.results, options.deadline),
        importlib.metadata.version("jax"),
    )


def default_workers(platform: str) -> int:
    """Several workers would only take turns on one accelerator."""
    return min(2, os.cpu_count() or 1) if platform == "cpu" else 1


def plan_of(options: Any) -> Plan:
    """What the options choose of all there is; they then hold the device counts."""
    options.devices = options.devices or _default_device_counts(options.platform)
    implementations = options.implementations or IMPLEMENTATIONS
    plan = selecting.plan_of(implementations, options.platform, options.devices, choice_of(options))
    return smoke(plan) if options.smoke else plan


def choice_of(options: Any) -> selecting.Choice:
    return selecting.Choice(options.seed, options.full)


def _whole_plan(plan: Plan, platform: str) -> Plan:
    """The plan that expectation files are written for, whatever part of it is run now."""
    if platform != "cpu":
        return plan
    return selecting.plan_of(IMPLEMENTATIONS, platform, CPU_DEVICE_COUNTS)


def _default_device_counts(platform: str) -> tuple[int, ...]:
    if platform == "cpu":
        return CPU_DEVICE_COUNTS
    # How many there are only a process on that platform can say.
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Topology(platform, 0), None, Path(folder) / "probe.log")
        count: int = worker.run_info["device_count"]
        worker.finish()
    return (1,) if count == 1 else (1, count)
