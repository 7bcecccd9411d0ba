"""Turns options into a run: the plan, the selected cells, the expectations."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cases.harness.extensions import extend
from ..expectations.entries import EXPECTATIONS, ExpectationError, Expectations, load_expectations
from ..implementations import base_of
from ..planning import selection as selecting
from ..planning.cells import Cell, Plan, parse_cell
from ..planning.depths import DEVICE_COUNTS, all_at_depth, at_depth, moved_to, multi_host_cells
from ..planning.plan_file import read_cells
from ..planning.processes import USUAL, plan_over_processes
from ..planning.selection import smoke
from ..reports.provenance import Provenance, RequiredCells
from ..reports.results import full_run_in, name_of
from ..spec.depths import Depth
from ..spec.errors import CommandError
from ..spec.platforms import platform_named, use_file
from ..spec.topology import parse_topology
from ..spec.versions import HOSTCB_NEEDS, version_matches
from .depths import Chosen, choose
from .machines.shards import shard_of
from .options import AUTO, FILE_ENDING, HOSTS, IMPLEMENTATIONS, SELECTION, ConflictingOptionsError, RunOptions
from .run import Run, task_of

SUPPORTED = HOSTCB_NEEDS
"""The releases of JAX that hostcb and the files of known failures support; the suite runs on older ones, too."""


def prepare(options: RunOptions) -> Run:
    needed = None
    if options.cells:
        options, cells = _named_cells(take_platform(options))
        selection = at_depth(Plan(cells, ()).on_this_release(), Depth(options.depth)).select(options.patterns)
    else:
        options, whole = whole_plan_of(options)
        selection = whole.on_this_release().select(options.patterns)
        needed = _required(options, whole)
    if (options.cells or options.topologies) and options.spread != HOSTS:
        # Without the devices or the compiler nothing begins, and the files of the last run stay.
        choose(options.platform, options.depth)
    refuse_full_results(options)
    jax_version = importlib.metadata.version("jax")
    files = _expectation_files(options, jax_version)
    known = Expectations(tuple(entry for file in files for entry in load_expectations(file).entries))
    with_cells = {cell.implementation for cell in selection.cells}
    bases = {name: base for name in sorted(with_cells) if (base := base_of(name))}
    of_wrapped = known.of_wrapped(bases, [cell.id for cell in selection.cells])
    prepared = Run(
        _plan_of_entries(options, known.applicable(jax_version)),
        replace(selection, cells=_of_shard(options, selection.cells)),
        Expectations((*known.entries, *of_wrapped)),
        options,
        jax_version,
        selection.cells,
        Provenance(options.recorded, needed, files, of_wrapped),
    )
    if options.resume:
        prepared.resume()
    return prepared


def refuse_full_results(options: RunOptions) -> None:
    """Refuse a run of some cells where the results of a full run are."""
    # Before the depth is known, it may be any.
    names = [name_of(options.platform, depth.value) for depth in Depth] if options.depth == AUTO else [options.name]
    if not options.whole and any(full_run_in(options.results, name) for name in names):
        raise CommandError(
            f"{options.results} has the results of a full run, which those of some of its cells would replace: name"
            f" another folder with --results, or leave it out for {SELECTION}"
        )


def _of_shard(options: RunOptions, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    if not options.shard:
        return tuple(cells)
    ids = shard_of([task_of(cell, options.deadline) for cell in cells], options.shard)
    return tuple(cell for cell in cells if cell.id in ids)


def _expectation_files(options: RunOptions, jax_version: str) -> tuple[Path, ...]:
    """The file of known failures that the options name, or those of the platform, which are for supported releases."""
    if options.expectations and not options.expectations.exists():
        raise ExpectationError(
            f"--expectations: there is no file {options.expectations}; an empty one says that no failure is known"
        )
    if options.expectations:
        return (options.expectations,)
    if not version_matches(jax_version, SUPPORTED):
        print(f"NOTE: known failures are listed for JAX {SUPPORTED}, none for {jax_version}", file=sys.stderr)
        return ()
    path = known_failures_of(options.platform)
    if not path.exists():
        print(f"NOTE: no failure of {options.platform} is known: no file names any (docs/vendors.md)", file=sys.stderr)
    # Known failures of JAX's own callbacks on every platform, where nothing runs.
    aot = [] if options.depth == Depth.RUN.value else [EXPECTATIONS / "aot.toml"]
    return tuple(file for file in (path, *aot) if file.exists())


def known_failures_of(platform: str) -> Path:
    """The file of a platform's known failures: its vendor's, or the suite's own, which may be absent."""
    return platform_named(platform).expectations or EXPECTATIONS / f"{platform}.toml"


def take_platform(options: RunOptions) -> RunOptions:
    """Let the platform add to the suite; the options have its name, where they had its file."""
    if options.platform.endswith(FILE_ENDING):
        options = replace(options, platform=use_file(Path(options.platform)).name)
    extend(options.platform)
    return options


def cell_named(options: argparse.Namespace) -> Cell:
    """The cell of a command that has one, on a platform that its `--platform` may describe."""
    platform = take_platform(RunOptions.of(options)).platform
    cell = parse_cell(options.cell_id)
    _platform_of([cell], platform)
    return cell


def workers_of(asked: int | None, platform: str, depth: Depth = Depth.RUN) -> int:
    """The number of worker processes: one for most accelerators, on which several would only take turns."""
    if depth is not Depth.RUN:
        # Only the CPU is used, by each of them.
        return asked or platform_named("cpu").workers
    described = platform_named(platform)
    if asked and described.most_workers and asked > described.most_workers:
        raise ConflictingOptionsError(
            f"-n {asked}: at most {described.most_workers} process(es) may use the devices of {platform}"
        )
    return asked or described.workers


def plan_of(options: argparse.Namespace) -> Plan:
    """The cells that the options of a command select and the installed release has."""
    return whole_plan_of(RunOptions.of(options))[1].on_this_release()


def whole_plan_of(options: RunOptions) -> tuple[RunOptions, Plan]:
    """The cells that the options select, the same on every release, and the options with what the suite has chosen."""
    options = take_platform(options)
    if options.smoke and options.full:
        raise ConflictingOptionsError("--smoke and --full exclude each other: name one of them")
    if options.topologies:
        options = _over_processes(options)
    else:
        chosen = choose(options.platform, options.depth)
        if chosen.why:
            print(f"depth {chosen.depth.value} of {options.platform}: {chosen.why}", file=sys.stderr)
        options = replace(
            options,
            depth=chosen.depth.value,
            depth_asked=chosen.asked,
            usual_devices=not options.devices,
            devices=options.devices or _default_device_counts(options.platform, chosen),
        )
    options = replace(options, implementations=options.implementations or IMPLEMENTATIONS)
    return options, planned(options)


def planned(options: RunOptions) -> Plan:
    """The cells for every release, by options in which nothing is left to the suite: those that results keep."""
    if options.topologies:
        return plan_over_processes(options.implementations, [parse_topology(name)[0] for name in options.topologies])
    platform, depth = options.platform, Depth(options.depth)
    choice = selecting.Choice(options.seed, options.full)
    plan = selecting.whole_plan_of(options.implementations, platform, options.devices, choice)
    if platform == "cpu" and options.usual_devices and depth is Depth.RUN:
        plan = plan.with_(plan_over_processes(options.implementations, [USUAL]))
    # In this order: what has no meaning at the depth must not stand for what has.
    plan = at_depth(plan, depth)
    plan = smoke(plan) if options.smoke else plan
    if depth is Depth.COMPILE and options.usual_devices and not options.smoke:
        plan = replace(plan, cells=(*plan.cells, *multi_host_cells(plan, platform)))
    return plan


def planned_again(options: Mapping[str, Any]) -> list[str]:
    """The ids of all cells from which a run with these recorded options has selected."""
    extend(options["platform"])
    return [cell.id for cell in planned(replace(RunOptions.from_json(options), smoke=False)).cells]


def _required(options: RunOptions, selected: Plan) -> RequiredCells:
    """The plan of these options, of which `selected` is all, or what `--smoke` leaves of it."""
    whole = planned(replace(options, smoke=False)) if options.smoke else selected
    lacking = whole.on_this_release().lacking
    return RequiredCells([cell.id for cell in whole.cells], {cell.id: cell.lacking or "" for cell in lacking})


def _over_processes(options: RunOptions) -> RunOptions:
    """The options for the topologies that `--devices` names."""
    if options.full or options.smoke:
        size = "--full" if options.full else "--smoke"
        raise ConflictingOptionsError(f"--devices names topologies, whose cells {size} does not choose: leave one out")
    topologies = [parse_topology(name)[0] for name in options.topologies]
    platforms = dict.fromkeys(topology.platform for topology in topologies)
    if options.platform != "cpu":
        platforms[options.platform] = None
    if len(platforms) > 1:
        raise ConflictingOptionsError(f"one run is on one platform, and these are several: {', '.join(platforms)}")
    if options.depth not in (AUTO, Depth.RUN.value):
        raise ConflictingOptionsError(f"several processes only run: --depth {options.depth} is for one process")
    (platform,) = platforms
    devices = tuple(sorted({topology.device_count for topology in topologies}))
    return replace(options, platform=platform, depth=Depth.RUN.value, devices=devices)


def _named_cells(options: RunOptions) -> tuple[RunOptions, tuple[Cell, ...]]:
    """The cells that `--cell` names, and the options for them."""
    given = {"--devices": options.devices or options.topologies, "--full": options.full, "--smoke": options.smoke}
    if wrong := [name for name, value in given.items() if value]:
        raise ConflictingOptionsError(f"--cell names the cells already, so {wrong[0]} has no meaning with it")
    wanted = options.implementations
    cells = tuple(cell for cell in read_cells(options.cells) if not wanted or cell.implementation in wanted)
    if not cells:
        raise ConflictingOptionsError(f"--cell names no cell of {' or '.join(wanted)}")
    chosen = _depth_of(cells, options.depth)
    options = replace(
        options,
        platform=_platform_of(cells, options.platform),
        devices=tuple(sorted({cell.topology.device_count for cell in cells})),
        implementations=wanted or tuple(dict.fromkeys(cell.implementation for cell in cells)),
        # A path says nothing about the cells.
        cells=tuple(cell.id for cell in cells),
        depth=chosen.value,
    )
    return options, tuple(moved_to(cell, chosen) for cell in cells)


def _platform_of(cells: Sequence[Cell], asked: str) -> str:
    """The platform in the ids of the cells."""
    platforms = dict.fromkeys(cell.topology.platform for cell in cells)
    if asked != "cpu":
        platforms[asked] = None
    if len(platforms) > 1:
        raise ConflictingOptionsError(
            f"one command is for one platform, and the cells and --platform name {', '.join(platforms)}"
        )
    return next(iter(platforms))


def _plan_of_entries(options: RunOptions, expectations: Expectations) -> Plan:
    """The cells that expectation files may name, not only those of this run or of this release.

    Without the cells that are drawn, if none of the entries names one.
    """
    if not expectations.entries:
        return Plan((), ())
    implementations = tuple(dict.fromkeys((*IMPLEMENTATIONS, *options.implementations)))
    depth = Depth(options.depth)
    device_counts = (
        selecting.CPU_DEVICE_COUNTS if options.platform == "cpu" else _counts_of_entries(options, expectations)
    )
    if depth is not Depth.RUN:
        device_counts = DEVICE_COUNTS
    plan = all_at_depth(selecting.undrawn_plan_of(implementations, options.platform, device_counts), depth)
    if options.platform == "cpu" and depth is Depth.RUN:
        plan = plan.with_(plan_over_processes(implementations, [USUAL]))
    if not expectations.unmatched([cell.id for cell in plan.cells]):
        return plan
    return plan.with_(all_at_depth(selecting.whole_plan_of(implementations, options.platform, device_counts), depth))


def _counts_of_entries(options: RunOptions, expectations: Expectations) -> tuple[int, ...]:
    """The numbers of devices of the run and the usual ones, and those of entries if the user has chosen among all."""
    globs = [] if options.usual_devices else [glob for entry in expectations.entries for glob in entry.cells]
    named = [re.search(rf"/{re.escape(options.platform)}-(\d+)dev", glob) for glob in globs]
    # The drawn cells of one number of devices are others than those of all: chosen cells may be of one alone.
    usual = platform_named(options.platform).device_counts or (1,)
    return tuple(sorted({*options.devices, *usual, *(int(found[1]) for found in named if found)}))


def _default_device_counts(platform: str, chosen: Chosen) -> tuple[int, ...]:
    if chosen.depth is not Depth.RUN:
        return DEVICE_COUNTS
    count = chosen.device_count
    if count is None:
        return selecting.CPU_DEVICE_COUNTS
    if described := platform_named(platform).device_counts:
        return described
    return (1,) if count == 1 else (1, count)


def _depth_of(cells: Sequence[Cell], asked: str) -> Depth:
    """The depth in the ids of the cells; an id without one is at the depth that the user asks for."""
    depths = {cell.topology.depth for cell in cells}
    named = [depth for depth in Depth if depth in depths and depth is not Depth.RUN]
    if len(depths) > 1 or (named and asked not in (AUTO, named[0].value)):
        words = [] if asked == AUTO else [f"--depth {asked}"]
        there = sorted({f"@{depth.value}" for depth in depths} | {*words})
        raise ConflictingOptionsError(f"one run has one depth, and its cells and options name {' and '.join(there)}")
    if named:
        return named[0]
    return Depth.RUN if asked == AUTO else Depth(asked)
