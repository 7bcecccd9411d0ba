"""Turns options into a run: the plan, the selected cells, the expectations."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..expectations.entries import EXPECTATIONS, ExpectationError, Expectations, load_expectations
from ..implementations import ImplementationError
from ..planning import selection as selecting
from ..planning.cells import Cell, Plan, UnknownCellError, parse_cell
from ..planning.depths import DEVICE_COUNTS, all_at_depth, at_depth, moved_to, multi_host_cells
from ..planning.keywords import KeywordError
from ..planning.plan_file import PlanFileError, read_plan
from ..planning.smoke import smoke
from ..spec.depths import Depth
from ..spec.versions import HOSTCB_NEEDS, version_matches
from ..worker.processes import WorkerStartError
from .depths import AUTO, Chosen, choose
from .run import Options, Run

IMPLEMENTATIONS = ("hostcb", "jax")
SUPPORTED = HOSTCB_NEEDS
"""The releases of JAX that hostcb and the files of known failures support; the suite runs on older ones, too."""


class ConflictingOptionsError(Exception):
    """Options that exclude each other."""


UNUSABLE_BECAUSE = (
    ConflictingOptionsError,
    ExpectationError,
    ImplementationError,
    KeywordError,
    PlanFileError,
    UnknownCellError,
    WorkerStartError,
    # Paths of the user may raise these.
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
"""Errors in the options, which print one line. A missing platform is not among them: it is a result of the run."""


def prepare(options: Any, patterns: Sequence[str] = ()) -> Run:
    """The run that the options ask for."""
    if options.plan_file or options.cell_ids:
        cells = _named_cells(options)
        options.platform = _platform_of(cells, options.platform, "--plan" if options.plan_file else "--cell")
        options.devices = options.devices or tuple(sorted({cell.topology.device_count for cell in cells}))
        options.implementations = options.implementations or list(dict.fromkeys(cell.implementation for cell in cells))
        options.chosen = _depth_of(cells, options)
        cells = tuple(moved_to(cell, options.chosen.depth) for cell in cells)
        selection = at_depth(Plan(cells, ()).on_this_release(), options.chosen.depth).select(patterns)
    else:
        selection = plan_of(options).select(patterns)
    if patterns and not (selection.cells or selection.ineligible):
        # Before anything is written: the results folder may have those of another run.
        raise ConflictingOptionsError(f"no cell's id matches {' or '.join(map(repr, patterns))}")
    jax_version = importlib.metadata.version("jax")
    known = [_known_failures(options, jax_version)]
    known += [] if options.expectations else [_known_ahead(options.chosen.depth, jax_version)]
    expectations = Expectations(tuple(entry for one in known for entry in one.entries))
    return Run(
        _plan_of_entries(options, expectations.applicable(jax_version).at(options.chosen.depth)),
        selection,
        expectations,
        Options(
            *(options.platform, options.results, options.deadline, options.repeat, options.stress, options.histories),
            depth=options.chosen.depth,
            depth_asked=options.chosen.asked,
        ),
        jax_version,
    )


def _known_failures(options: Any, jax_version: str) -> Expectations:
    """The known failures in the file that the options name, or in the platform's, which is for supported releases."""
    if not options.expectations and not version_matches(jax_version, SUPPORTED):
        print(f"NOTE: known failures are listed for JAX {SUPPORTED}, none for {jax_version}", file=sys.stderr)
        return Expectations()
    path = options.expectations or EXPECTATIONS / f"{options.platform}.toml"
    if options.expectations and not path.exists():
        raise ExpectationError(f"--expectations: there is no file {path}; an empty one says that no failure is known")
    if not path.exists():
        print(f"NOTE: there is no {path}: no failure is known", file=sys.stderr)
    return load_expectations(path)


def _known_ahead(depth: Depth, jax_version: str) -> Expectations:
    """The known failures of JAX's own callbacks on every platform, where nothing runs."""
    path = EXPECTATIONS / "ahead.toml"
    if depth is Depth.RUN or not version_matches(jax_version, SUPPORTED) or not path.exists():
        return Expectations()
    return load_expectations(path)


def default_workers(platform: str) -> int:
    """One for an accelerator, on which several workers would only take turns."""
    return min(2, os.cpu_count() or 1) if platform == "cpu" else 1


def plan_of(options: Any) -> Plan:
    """The cells that the options select and the installed release has; sets the device counts in `options`."""
    return whole_plan_of(options).on_this_release()


def whole_plan_of(options: Any) -> Plan:
    """The cells that the options select, the same on every release; sets the device counts in `options`."""
    if options.smoke and options.full:
        raise ConflictingOptionsError("--smoke and --full exclude each other: name one of them")
    chosen = options.chosen = choose(options.platform, options.depth)
    chosen.announce(options.platform)
    by_user = bool(options.devices)
    options.devices = options.devices or _default_device_counts(options.platform, chosen)
    implementations = options.implementations or IMPLEMENTATIONS
    whole = selecting.whole_plan_of(implementations, options.platform, options.devices, choice_of(options))
    plan = at_depth(smoke(whole) if options.smoke else whole, chosen.depth)
    if chosen.depth is Depth.COMPILE and not by_user and not options.smoke:
        plan = replace(plan, cells=(*plan.cells, *multi_host_cells(plan, options.platform)))
    return plan


def _named_cells(options: Any) -> tuple[Cell, ...]:
    """The cells that `--cell` or a file of a plan names."""
    if not options.plan_file:
        return tuple(parse_cell(cell_id) for cell_id in dict.fromkeys(options.cell_ids))
    for given, name in (
        (options.cell_ids, "--cell"),
        (options.devices, "--devices"),
        (options.seed, "--seed"),
        (options.full, "--full"),
        (options.smoke, "--smoke"),
    ):
        if given:
            raise ConflictingOptionsError(f"--plan names the cells already, so {name} has no meaning with it")
    cells = read_plan(options.plan_file)
    wanted = options.implementations
    chosen = tuple(cell for cell in cells if not wanted or cell.implementation in wanted)
    if not chosen:
        raise PlanFileError(f"{options.plan_file} names no cell of {' or '.join(wanted)}")
    return chosen


def choice_of(options: Any) -> selecting.Choice:
    return selecting.Choice(options.seed, options.full)


def _platform_of(cells: Sequence[Cell], asked: str, named: str) -> str:
    """The platform in the ids of the cells."""
    platforms = dict.fromkeys(cell.topology.platform for cell in cells)
    if asked != "cpu":
        platforms[asked] = None
    if len(platforms) > 1:
        raise ConflictingOptionsError(
            f"one run is on one platform, and {named} and --platform name {', '.join(platforms)}"
        )
    return next(iter(platforms))


def _plan_of_entries(options: Any, expectations: Expectations) -> Plan:
    """The cells that expectation files may name, not only those of this run or of this release.

    Without the cells that are drawn, if none of the entries names one.
    """
    if not expectations.entries:
        return Plan((), ())
    implementations = tuple(dict.fromkeys((*IMPLEMENTATIONS, *(options.implementations or ()))))
    depth = options.chosen.depth
    device_counts = selecting.CPU_DEVICE_COUNTS if options.platform == "cpu" else options.devices
    if depth is not Depth.RUN:
        device_counts = tuple(sorted({*DEVICE_COUNTS, *options.devices}))
    plan = all_at_depth(selecting.undrawn_plan_of(implementations, options.platform, device_counts), depth)
    if not expectations.unmatched([cell.id for cell in plan.cells]):
        return plan
    return all_at_depth(selecting.whole_plan_of(implementations, options.platform, device_counts), depth)


def _default_device_counts(platform: str, chosen: Chosen) -> tuple[int, ...]:
    if chosen.depth is not Depth.RUN:
        return DEVICE_COUNTS
    count = chosen.device_count
    if count is None:
        return selecting.CPU_DEVICE_COUNTS
    return (1,) if count == 1 else (1, count)


def _depth_of(cells: Sequence[Cell], options: Any) -> Chosen:
    """The depth in the ids of the cells; an id without one is at the depth that the user asks for."""
    depths = {cell.topology.depth for cell in cells}
    named = [depth for depth in Depth if depth in depths and depth is not Depth.RUN]
    if len(depths) > 1 or (named and options.depth not in (AUTO, named[0].value)):
        asked = [] if options.depth == AUTO else [f"--depth {options.depth}"]
        there = sorted({f"@{depth.value}" for depth in depths} | {*asked})
        raise ConflictingOptionsError(f"one run has one depth, and its cells and options name {' and '.join(there)}")
    if named:
        return Chosen(named[0])
    return Chosen(Depth.RUN if options.depth == AUTO else Depth(options.depth))
