"""Turns options into a run: the plan, the selected cells, the expectations."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cases.harness.extensions import extend
from ..expectations.entries import EXPECTATIONS, ExpectationError, Expectations, load_expectations
from ..implementations import ImplementationError, base_of
from ..planning import selection as selecting
from ..planning.cells import Cell, Plan, UnknownCellError, parse_cell
from ..planning.depths import DEVICE_COUNTS, all_at_depth, at_depth, moved_to
from ..planning.keywords import KeywordError
from ..planning.plan_file import PlanFileError, read_plan
from ..planning.processes import USUAL, plan_over_processes
from ..reports.provenance import Provenance
from ..reports.results import UnreadableResultsError
from ..spec.depths import Depth
from ..spec.entry_points import VendorError
from ..spec.errors import CommandError
from ..spec.platforms import platform_named, use_file
from ..spec.versions import HOSTCB_NEEDS, version_matches
from ..worker.processes import WorkerStartError
from .depths import AUTO, Chosen, choose
from .locking import FolderInUseError
from .origin import Origin
from .parts import LastResults, PartError, balance_digest, cells_of_shard
from .parts import check as check_parts
from .recorded import planned, recorded, required
from .run import Options, Run, task_of
from .run_journal import ResumeError
from .selections import FullResultsError, check_folder

IMPLEMENTATIONS = ("hostcb", "jax")
SUPPORTED = HOSTCB_NEEDS
"""The releases of JAX that hostcb and the files of known failures support; the suite runs on older ones, too."""


class ConflictingOptionsError(CommandError):
    """Options that exclude each other."""


UNUSABLE_BECAUSE = (
    ConflictingOptionsError,
    ExpectationError,
    ImplementationError,
    FolderInUseError,
    KeywordError,
    PartError,
    FullResultsError,
    PlanFileError,
    ResumeError,
    UnknownCellError,
    UnreadableResultsError,
    VendorError,
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
    take_platform(options)
    check_parts(options, patterns)
    last = needed = None
    if options.retry_missing:
        asked = None if options.depth == AUTO else Depth(options.depth)
        last = LastResults(options.results, options.platform, asked)
        options.chosen = Chosen(last.depth)
        selection, needed = last.selection, last.required
        options.devices = tuple(sorted({cell.topology.device_count for cell in selection.cells}))
        options.implementations = list(dict.fromkeys(cell.implementation for cell in selection.cells))
    elif options.plan_file or options.cell_ids:
        if options.topologies:
            raise ConflictingOptionsError("--cell and --plan name cells with their topologies: --topology adds nothing")
        cells = _named_cells(options)
        options.platform = _platform_of(cells, options.platform, "--plan" if options.plan_file else "--cell")
        options.devices = options.devices or tuple(sorted({cell.topology.device_count for cell in cells}))
        options.implementations = options.implementations or list(dict.fromkeys(cell.implementation for cell in cells))
        options.chosen = _depth_of(cells, options)
        cells = tuple(moved_to(cell, options.chosen.depth) for cell in cells)
        selection = at_depth(Plan(cells, ()).on_this_release(), options.chosen.depth).select(patterns)
    else:
        whole = whole_plan_of(options)
        selection = whole.on_this_release().select(patterns)
        needed = required(recorded(options, options.implementations or IMPLEMENTATIONS, patterns), whole)
    if patterns and not (selection.cells or selection.ineligible):
        # Before anything is written: the results folder may have those of another run.
        raise ConflictingOptionsError(f"no cell's id matches {' or '.join(map(repr, patterns))}")
    jax_version = importlib.metadata.version("jax")
    files = _expectation_files(options, jax_version)
    known = Expectations(tuple(entry for file in files for entry in load_expectations(file).entries))
    with_cells = {cell.implementation for cell in selection.cells}
    bases = {name: base for name in sorted(with_cells) if (base := base_of(name))}
    of_wrapped = known.of_wrapped(bases, [cell.id for cell in selection.cells])
    expectations = Expectations((*known.entries, *of_wrapped))
    of_run = Options(
        *(options.platform, options.results, options.deadline, options.repeat, options.stress, options.histories),
        depth=options.chosen.depth,
        depth_asked=options.chosen.asked,
        # pytest's own command line has no such option.
        scheduler=getattr(options, "scheduler", None),
        maxfail=options.maxfail or 0,
        plugins=tuple(getattr(options, "pytest_plugins", ())),
        live=getattr(options, "live", "auto"),
        whole=_is_whole(options, patterns),
        planned_order=options.order == "planned",
        compiled=getattr(options, "compiled", None),
    )
    check_folder(options.results, of_run.name, of_run.whole or options.retry_missing)
    origin = _origin(options, of_run, selection.cells)
    if last:
        last.check(of_run.of_cells, options.implementations)
    prepared = Run(
        _plan_of_entries(options, known.applicable(jax_version)),
        replace(selection, cells=tuple(origin.cells)),
        expectations,
        of_run,
        jax_version,
        origin,
        last.past if last else None,
        last.fields if last else None,
        Provenance(recorded(options, options.implementations or IMPLEMENTATIONS, patterns), needed, files, of_wrapped),
    )
    if options.resume:
        prepared.resume()
    return prepared


def _is_whole(options: Any, patterns: Sequence[str]) -> bool:
    """Whether all cells of the platform are asked for."""
    chosen = (options.plan_file, options.cell_ids, patterns, options.smoke, options.implementations)
    if getattr(options, "keyword", ""):
        # Of pytest's own command line, which selects among the cells later.
        return False
    return not any((*chosen, options.shard, options.topologies, options.retry_missing))


def _origin(options: Any, of_run: Options, cells: Sequence[Cell]) -> Origin:
    """The cells that this run has of a selection."""
    if not options.shard:
        return Origin(cells, cells)
    tasks = [task_of(cell, options.deadline) for cell in cells]
    chosen = cells_of_shard(cells, tasks, options.shard, options.balance)
    balance = balance_digest(options.balance, of_run.name) if options.balance else None
    return Origin(cells, chosen, options.shard, balance)


def _expectation_files(options: Any, jax_version: str) -> tuple[Path, ...]:
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
        print(f"NOTE: there is no {path}: no failure is known", file=sys.stderr)
    # Known failures of JAX's own callbacks on every platform, where nothing runs.
    ahead = [] if options.chosen.depth is Depth.RUN else [EXPECTATIONS / "ahead.toml"]
    return tuple(file for file in (path, *ahead) if file.exists())


def known_failures_of(platform: str) -> Path:
    """The file of a platform's known failures: its vendor's, or the suite's own, which may be absent."""
    return platform_named(platform).expectations or EXPECTATIONS / f"{platform}.toml"


def take_platform(options: Any) -> None:
    """Set `options.platform` to that of the platform's file, if there is one, and let it add to the suite."""
    if getattr(options, "platform_file", None):
        platform = use_file(options.platform_file)
        if options.platform not in ("cpu", platform.name):
            raise ConflictingOptionsError(
                f"--platform names {options.platform}, and {options.platform_file} describes {platform.name}"
            )
        options.platform, options.platform_file = platform.name, None
    extend(options.platform)


def workers_of(asked: int | None, platform: str, depth: Depth = Depth.RUN) -> int:
    """The number of worker processes: one for most accelerators, on which several would only take turns."""
    if depth is not Depth.RUN:
        # Only the CPU is used, by each of them.
        return asked or platform_named("cpu").workers
    described = platform_named(platform)
    if asked and described.most_workers and asked > described.most_workers:
        raise ConflictingOptionsError(
            f"-n {asked}: at most {described.most_workers} process(es) may have the devices of {platform}"
        )
    return asked or described.workers


def plan_of(options: Any) -> Plan:
    """The cells that the options select and the installed release has; sets the device counts in `options`."""
    return whole_plan_of(options).on_this_release()


def whole_plan_of(options: Any) -> Plan:
    """The cells that the options select, the same on every release; sets the device counts in `options`."""
    take_platform(options)
    if options.smoke and options.full:
        raise ConflictingOptionsError("--smoke and --full exclude each other: name one of them")
    if options.topologies:
        return _over_processes(options)
    if not hasattr(options, "chosen"):
        options.chosen = choose(options.platform, options.depth)
        options.chosen.announce(options.platform)
    chosen = options.chosen
    options.usual_devices = not options.devices
    options.devices = options.devices or _default_device_counts(options.platform, chosen)
    implementations = options.implementations or IMPLEMENTATIONS
    where = (options.platform, options.devices, choice_of(options), chosen.depth)
    return planned(implementations, *where, options.usual_devices, options.smoke)


def _over_processes(options: Any) -> Plan:
    """The cells on the topologies that `--topology` names."""
    given = {"--devices": options.devices, "--full": options.full, "--smoke": options.smoke, "--seed": options.seed}
    if wrong := [name for name, value in given.items() if value]:
        raise ConflictingOptionsError(f"--topology names what {wrong[0]} would choose from: name one of the two")
    platforms = dict.fromkeys(topology.platform for topology in options.topologies)
    if options.platform != "cpu":
        platforms[options.platform] = None
    if len(platforms) > 1:
        raise ConflictingOptionsError(f"one run is on one platform, and these are several: {', '.join(platforms)}")
    if options.depth not in (AUTO, Depth.RUN.value):
        raise ConflictingOptionsError(f"several processes only run: --depth {options.depth} is for one process")
    (options.platform,) = platforms
    options.chosen, options.usual_devices = Chosen(Depth.RUN), False
    options.devices = tuple(sorted({topology.device_count for topology in options.topologies}))
    return plan_over_processes(options.implementations or IMPLEMENTATIONS, options.topologies)


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
        device_counts = DEVICE_COUNTS
    plan = all_at_depth(selecting.undrawn_plan_of(implementations, options.platform, device_counts), depth)
    if options.platform == "cpu" and depth is Depth.RUN:
        plan = plan.with_(plan_over_processes(implementations, [USUAL]))
    if not expectations.unmatched([cell.id for cell in plan.cells]):
        return plan
    return plan.with_(all_at_depth(selecting.whole_plan_of(implementations, options.platform, device_counts), depth))


def _default_device_counts(platform: str, chosen: Chosen) -> tuple[int, ...]:
    if chosen.depth is not Depth.RUN:
        return DEVICE_COUNTS
    count = chosen.device_count
    if count is None:
        return selecting.CPU_DEVICE_COUNTS
    if described := platform_named(platform).device_counts:
        return described
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
