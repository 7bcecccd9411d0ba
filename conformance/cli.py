"""The command line: `python -m conformance`, followed by one of its commands."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance import repro
from conformance.cells import Plan, UnknownCellError, make_plan, parse_cell
from conformance.expectations import ExpectationError, load_expectations
from conformance.mutants import command as mutants
from conformance.processes import WorkerProcess, WorkerStartError
from conformance.reports import command as reports
from conformance.runner import Options, run
from conformance.topology import Topology, WrongPlatformError

IMPLEMENTATIONS = ("hostcb", "jax")
CPU_DEVICE_COUNTS = (1, 8)
EXPECTATIONS = Path(__file__).parent.parent / "ci" / "expectations"

FAILED, UNUSABLE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command in reports.COMMANDS:
        return reports.read(options)
    try:
        if options.command == "repro":
            return repro.main(options)
        if options.command == "mutants":
            return mutants.main(options)
        return _list(options) if options.command == "list" else _run(options)
    except WrongPlatformError as error:
        print(
            f"ERROR: the {options.platform} cells cannot run here, and nothing was tested: {error}",
            file=sys.stderr,
        )
    except (UnknownCellError, ExpectationError, WorkerStartError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
    return UNUSABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run_parser = commands.add_parser("run", help="run cells and judge them")
    list_parser = commands.add_parser("list", help="list the cells there are")
    mutants.add_parser(commands)
    for command in (run_parser, list_parser):
        command.add_argument("--platform", default="cpu", help="cpu, cuda, rocm, tpu, ...")
        command.add_argument(
            "--devices",
            type=_device_counts,
            help="device counts, like 1,8; by default 1,8 on cpu and 1,all elsewhere",
        )
        command.add_argument(
            "--implementation",
            dest="implementations",
            action="append",
            choices=IMPLEMENTATIONS,
            help="only this implementation; may be repeated",
        )
        command.add_argument(
            "-k",
            dest="patterns",
            action="append",
            default=[],
            metavar="TEXT",
            help="only cells whose id contains this text or matches it as a glob; may be repeated",
        )
    list_parser.add_argument("--ineligible", action="store_true", help="the cells that mean nothing, and why")
    run_parser.add_argument("--cell", action="append", default=[], metavar="ID", dest="cell_ids")
    run_parser.add_argument("-n", dest="workers", type=int, help="worker processes")
    run_parser.add_argument("--results", type=Path, default=Path("results"))
    run_parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS", help="for each cell")
    run_parser.add_argument(
        "--expectations",
        type=Path,
        help="file of known failures; by default ci/expectations/PLATFORM.toml",
    )
    repro.add_parser(commands)
    reports.add_parsers(commands)
    return parser


def _device_counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


def _run(options: argparse.Namespace) -> int:
    if options.cell_ids:
        cells = tuple(parse_cell(cell_id) for cell_id in options.cell_ids)
        selection = Plan(cells, ())
        # The cells say where they run.
        options.platform = cells[0].topology.platform
        options.devices = options.devices or tuple(sorted({cell.topology.device_count for cell in cells}))
    plan = _plan(options)
    if not options.cell_ids:
        selection = plan.select(options.patterns)
    path = options.expectations or EXPECTATIONS / f"{options.platform}.toml"
    # Several workers would only take turns on one accelerator.
    default_workers = min(2, os.cpu_count() or 1) if options.platform == "cpu" else 1
    report = run(
        _whole_plan(plan, options.platform),
        selection,
        load_expectations(path),
        Options(
            options.platform,
            options.results,
            options.workers or default_workers,
            options.deadline,
        ),
        importlib.metadata.version("jax"),
    )
    print(report.summary())
    return report.exit_code


def _list(options: argparse.Namespace) -> int:
    plan = _plan(options).select(options.patterns)
    if options.ineligible:
        for ineligible in plan.ineligible:
            print(f"{ineligible.id}: {ineligible.reason}")
    else:
        for cell in plan.cells:
            print(cell.id, ",".join(cell.promises))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    counts = options.devices or _default_device_counts(options.platform)
    implementations = options.implementations or IMPLEMENTATIONS
    return make_plan(implementations, [Topology(options.platform, count) for count in counts])


def _whole_plan(plan: Plan, platform: str) -> Plan:
    """The plan that expectation files are written for, whatever part of it is run now."""
    if platform != "cpu":
        return plan
    return make_plan(IMPLEMENTATIONS, [Topology(platform, count) for count in CPU_DEVICE_COUNTS])


def _default_device_counts(platform: str) -> tuple[int, ...]:
    if platform == "cpu":
        return CPU_DEVICE_COUNTS
    # How many there are only a process on that platform can say.
    with tempfile.TemporaryDirectory() as folder:
        worker = WorkerProcess(Topology(platform, 0), None, Path(folder) / "probe.log")
        count: int = worker.run_info["device_count"]
        worker.finish()
    return (1,) if count == 1 else (1, count)
