"""From options to what is to be run: the plan, the cells of it that were chosen, the expectations."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance import selection as selecting
from conformance.cells import Cell, Plan, UnknownCellError, parse_cell
from conformance.expectations import ExpectationError, load_expectations
from conformance.implementations import ImplementationError
from conformance.keywords import KeywordError
from conformance.processes import WorkerProcess, WorkerStartError
from conformance.runner import Options, Run
from conformance.smoke import smoke
from conformance.topology import Topology

IMPLEMENTATIONS = ("hostcb", "jax")
CPU_DEVICE_COUNTS = selecting.CPU_DEVICE_COUNTS
_IN_A_CHECKOUT = Path(__file__).parent.parent / "ci" / "expectations"
_INSTALLED = Path(__file__).parent / "expectations_of_platforms"
EXPECTATIONS = _IN_A_CHECKOUT if _IN_A_CHECKOUT.is_dir() else _INSTALLED
"""Where the files of known failures are: a wheel has a copy."""


class ConflictingOptionsError(Exception):
    """Options that each mean something, and not together."""


UNUSABLE_BECAUSE = (
    ConflictingOptionsError,
    ExpectationError,
    ImplementationError,
    KeywordError,
    UnknownCellError,
    WorkerStartError,
    # What paths of the user may be.
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""What is wrong with options: said in a line. A platform that is not there is another matter, and a result."""


def prepare(options: Any, patterns: Sequence[str] = ()) -> Run:
    """What the options ask for, ready to be run."""
    if options.cell_ids:
        cells = tuple(parse_cell(cell_id) for cell_id in dict.fromkeys(options.cell_ids))
        selection = Plan(cells, ()).select(patterns)
        options.platform = _platform_of(cells, options.platform)
        options.devices = options.devices or tuple(sorted({cell.topology.device_count for cell in cells}))
        options.implementations = options.implementations or list(dict.fromkeys(cell.implementation for cell in cells))
    else:
        selection = plan_of(options).select(patterns)
    path = options.expectations or EXPECTATIONS / f"{options.platform}.toml"
    if not path.exists():
        print(f"NOTE: there is no {path}: no failure is known", file=sys.stderr)
    return Run(
        _whole_plan(options),
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


def _platform_of(cells: Sequence[Cell], asked: str) -> str:
    """Cells say themselves where they run."""
    platforms = dict.fromkeys(cell.topology.platform for cell in cells)
    if asked != "cpu":
        platforms[asked] = None
    if len(platforms) > 1:
        raise ConflictingOptionsError(
            f"one run is on one platform, and --cell and --platform name {', '.join(platforms)}"
        )
    return next(iter(platforms))


def _whole_plan(options: Any) -> Plan:
    """The cells that expectation files may be about, whatever part of them is run now."""
    implementations = dict.fromkeys((*IMPLEMENTATIONS, *(options.implementations or ())))
    device_counts = CPU_DEVICE_COUNTS if options.platform == "cpu" else options.devices
    return selecting.plan_of(tuple(implementations), options.platform, device_counts)


def _default_device_counts(platform: str) -> tuple[int, ...]:
    if platform == "cpu":
        return CPU_DEVICE_COUNTS
    # How many there are only a process on that platform can say.
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Topology(platform, 0), None, Path(folder) / "probe.log")
        count: int = worker.run_info["device_count"]
        worker.finish()
    return (1,) if count == 1 else (1, count)
