"""The whole command line, for commands that plan or run cells."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..engine.options import add_running, add_selection, positive
from ..engine.preparation import (
    IMPLEMENTATIONS,
    UNUSABLE_BECAUSE,
    ConflictingOptionsError,
    choice_of,
    default_workers,
    plan_of,
    prepare,
)
from ..engine.run import run
from ..engine.tools import MissingToolError
from ..planning.coverage import coverage_of, show
from ..releases.known_bugs import KnownBugsError
from ..releases.release import ReleaseError
from ..reports.markdown import markdown
from ..reports.results import UnreadableResultsError, load_results
from ..spec.package import COMMAND
from ..spec.topology import WrongPlatformError
from . import environments, expect, known_bugs, mutants, releases, report, repro

DESCRIPTION = "Show, cell by cell, what host callbacks do on a platform."

UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command in report.COMMANDS:
        return report.read(options)
    try:
        if options.command == "repro":
            return repro.main(options)
        if options.command == "mutants":
            return mutants.main(options)
        if options.command == "expect":
            return expect.main(options)
        if options.command == "releases":
            return releases.main(options)
        if options.command == "known-bugs":
            return known_bugs.main(options)
        if options.command == "environments":
            return environments.main(options)
        return _list(options) if options.command == "list" else _run(options)
    except WrongPlatformError as error:
        print(
            f"ERROR: the {options.platform} cells cannot run here, and nothing was tested: {error}",
            file=sys.stderr,
        )
    except (*UNUSABLE_BECAUSE, MissingToolError, ReleaseError, KnownBugsError, UnreadableResultsError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return UNUSABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)

    run_parser = commands.add_parser("run", help="run cells and judge them")
    list_parser = commands.add_parser("list", help="list the cells there are")
    mutants.add_parser(commands)
    for command in (run_parser, list_parser):
        add_selection(command.add_argument)
        command.add_argument(
            "-k",
            dest="patterns",
            action="append",
            default=[],
            metavar="EXPR",
            help="only cells whose id answers to this, as for pytest: 'id_tap and not (vmap or pmap)'; may be repeated",
        )
    list_parser.add_argument(
        "--coverage", action="store_true", help="what of all axes is covered, and what not and why"
    )
    list_parser.add_argument("--json", action="store_true", help="with --coverage: as JSON")
    list_parser.add_argument("--ineligible", action="store_true", help="the cells that mean nothing, and why")
    add_running(run_parser.add_argument)
    run_parser.add_argument(
        "-n", dest="workers", type=positive(int), help="pytest processes, each with one worker process"
    )
    repro.add_parser(commands)
    expect.add_parser(commands)
    releases.add_parser(commands)
    known_bugs.add_parser(commands)
    environments.add_parser(commands)
    report.add_parsers(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    prepared = prepare(options, options.patterns)
    found = run(prepared, options.workers or default_workers(options.platform))
    print(found.summary())
    _add_to_job_summary(options.results, options.platform)
    return found.exit_code


def _add_to_job_summary(results: Path, platform: str) -> None:
    """In a job of GitHub Actions, add the report to the page of the job."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        runs = [run for run in load_results(results) if run.platform == platform]
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(runs))


def _list(options: argparse.Namespace) -> int:
    if options.json and not options.coverage:
        raise ConflictingOptionsError("--json is for --coverage")
    plan = plan_of(options).select(options.patterns)
    if not (plan.cells or plan.ineligible):
        print("ERROR: no cell answers to that", file=sys.stderr)
        return UNUSABLE
    if options.coverage:
        implementations = options.implementations or IMPLEMENTATIONS
        where = (options.platform, options.devices, choice_of(options))
        print(show([coverage_of(plan, name, *where) for name in implementations], options.json))
    elif options.ineligible:
        for ineligible in plan.ineligible:
            print(f"{ineligible.id}: {ineligible.reason}")
    else:
        for cell in plan.cells:
            print(cell.id, ",".join(cell.promises))
    return 0
