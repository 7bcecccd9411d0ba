"""The whole command line, for commands that plan or run cells."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..bisecting import commit_search
from ..engine.cluster import ClusterError
from ..engine.live import CHOICES
from ..engine.locking import FolderLock
from ..engine.options import add_pytest, add_running, add_scheduler, add_selection, positive
from ..engine.preparation import (
    IMPLEMENTATIONS,
    UNUSABLE_BECAUSE,
    ConflictingOptionsError,
    choice_of,
    plan_of,
    prepare,
    take_platform,
    whole_plan_of,
    workers_of,
)
from ..engine.run import run
from ..engine.selections import choose_folder
from ..engine.tools import DaskClusterError, MissingToolError, require_distributed, require_tools
from ..engine.user_plugins import PluginError, require_plugins
from ..mutants.ranking import NoMatrixError
from ..planning.cells import Ineligible
from ..planning.coverage import coverage_of, show
from ..planning.plan_file import plan_text
from ..planning.promised import promise_table
from ..planning.promised import show as show_promises
from ..releases.release import ReleaseError
from ..reports.markdown import markdown
from ..reports.results import UnreadableResultsError, load_results
from ..reports.visible import visible
from ..soak.watching import RefusedError
from ..spec.package import COMMAND
from ..spec.topology import WrongPlatformError
from ..standalone.programs import NotStandaloneError
from . import (
    bisect,
    compiled,
    expect,
    loaded,
    minimise,
    mutants,
    never_run,
    releases,
    report,
    repro,
    soak,
)
from .distributed import run_distributed
from .errors import words_of
from .helping import add_command, add_version
from .platforms import show_platforms

DESCRIPTION = "Show, cell by cell, what host callbacks do on a platform."

UNUSABLE = 2

OTHER_REASONS = (
    ClusterError,
    DaskClusterError,
    MissingToolError,
    NoMatrixError,
    NotStandaloneError,
    PluginError,
    ReleaseError,
    RefusedError,
    UnreadableResultsError,
    minimise.SuiteFailedError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    if options.command in report.COMMANDS:
        return report.read(options)
    try:
        return _MAIN[options.command](options)
    except WrongPlatformError as error:
        # Commands that are given the ids of cells have no such option.
        cells = f"the {options.platform} cells" if hasattr(options, "platform") else "the cells"
        # Cells that are named are never taken less far than they say.
        advice = "; `--depth lower` lowers them without that hardware" if hasattr(options, "depth") else ""
        print(f"ERROR: {cells} cannot run here, and nothing was tested: {error}{advice}", file=sys.stderr)
    except (*UNUSABLE_BECAUSE, *OTHER_REASONS) as error:
        # It may quote a file of somebody else.
        print(f"ERROR: {visible(str(error))}", file=sys.stderr)
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Such as a full disk. The error of a write does not name its file.
        where = "" if error.filename else ", while a file of this command was written: is its disk full?"
        print(f"ERROR: {visible(words_of(error))}{where}", file=sys.stderr)
    return UNUSABLE


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        parsed = _parser().parse_args(words)
    except SystemExit as ending:
        # `git bisect run` would take the usual exit code for a bad commit.
        if words[:1] == ["bisect"] and "--step" in words and ending.code == UNUSABLE:
            raise SystemExit(commit_search.STOP) from ending
        raise
    parsed.arguments = words
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=DESCRIPTION)
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True)

    run_parser = add_command(
        commands,
        "run",
        "run cells and judge them",
        "Run the selected cells in worker processes, print a table, and write the results for `report` and `diff`.",
        [
            "--smoke",
            "--platform cuda --results cuda",
            "--platform tpu --depth lower",
            "-k 'id_tap and scan'",
            "--cell hostcb/call/jit/cpu-1dev --repeat 100",
            "--shard 3/8 --results shard-3",
            "--shard 3/8 --results shard-3 --resume",
        ],
        {
            0: "every cell is as expected: it passes, or is a known failure",
            1: "a cell is not as expected, or the run has a problem, for example an interrupt",
            UNUSABLE: "nothing was tested: bad input, no device, or no cell",
            3: "as 0 at depth compile, which the machine has chosen: nothing ran",
            4: "as 0 at depth lower, which the machine has chosen: nothing ran",
        },
    )
    list_parser = add_command(
        commands,
        "list",
        "list the cells there are",
        "List the selected cells with the promises that they test.",
        ["-k fault.", "--coverage --json", "--promises", "--ineligible", "--plan --smoke"],
        {
            0: "there are cells",
            1: "with --promises: there is a hole, or a stale reason",
            UNUSABLE: "bad input, or no cell",
        },
    )
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
    list_parser.add_argument(
        "--promises",
        action="store_true",
        help="a table of promises and kinds of callback: cells, or why there are none, or a hole",
    )
    list_parser.add_argument("--json", action="store_true", help="with --coverage: as JSON")
    list_parser.add_argument(
        "--plan", action="store_true", dest="as_plan", help="as a file for `run --plan`, the same on every release"
    )
    list_parser.add_argument(
        "--platforms", action="store_true", help="the platforms that the suite, packages and files describe"
    )
    list_parser.add_argument("--ineligible", action="store_true", help="the cells that mean nothing, and why")
    add_running(run_parser.add_argument)
    compiled.add_option(run_parser.add_argument)
    loaded.add_options(run_parser.add_argument)
    add_pytest(run_parser.add_argument)
    run_parser.add_argument(
        "-n",
        dest="workers",
        type=positive(int),
        help="pytest processes, each with one worker process; by default 3 on cpu, elsewhere what the platform says",
    )
    add_scheduler(run_parser.add_argument, "run the cells")
    run_parser.add_argument(
        "--live",
        choices=CHOICES,
        default="auto",
        help="a view that is drawn in place, of how far the run is and which cells are slow; by default in a terminal, "
        "and elsewhere a line from time to time",
    )
    run_parser.add_argument(
        "--distributed",
        action="store_true",
        help="in a job of Slurm, Open MPI, Kubernetes or Cloud TPU, where every host runs this same command",
    )
    repro.add_parser(commands)
    minimise.add_parser(commands)
    expect.add_parser(commands)
    bisect.add_parser(commands)
    releases.add_parser(commands)
    never_run.add_parser(commands)
    soak.add_parser(commands)
    report.add_parsers(commands)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.loaded_by:
        return loaded.run_loaded(options, options.arguments)
    if options.times:
        raise ConflictingOptionsError("--times is for --loaded-by; --repeat N runs each cell N times in one run")
    compiled.check_options(options)
    choose_folder(options, options.patterns)
    if options.distributed:
        ended = run_distributed(options)
        if isinstance(ended, int):
            return ended
        print(ended.summary())
        return ended.exit_code
    # A missing package is known before the plan, which takes seconds.
    take_platform(options)
    require_tools(options.workers or workers_of(None, options.platform))
    if options.scheduler:
        if options.stress or options.workers:
            raise ConflictingOptionsError("--scheduler has the cluster's workers: neither -n nor --stress goes with it")
        if options.pytest_plugins:
            raise ConflictingOptionsError("-p is for pytest processes, and a Dask cluster has none: leave it out")
        require_distributed()
    require_plugins(options.pytest_plugins)
    with FolderLock(options.results) as lock:
        prepared = prepare(options, options.patterns)
        compiled.check(options.compiled, prepared)
        lock.acquire()
        found = run(prepared, workers_of(options.workers, options.platform, prepared.options.depth))
    print(found.summary())
    if found.exit_code != UNUSABLE:
        print(f"Results are in {options.results}: `{COMMAND} report {shlex.quote(str(options.results))}` shows them.")
        _add_to_job_summary(options.results, prepared.options.name)
    return found.exit_code


def _add_to_job_summary(results: Path, name: str) -> None:
    """In a job of GitHub Actions, add the report to the page of the job."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        runs = [run for run in load_results(results) if run.name == name]
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(runs))


def _list(options: argparse.Namespace) -> int:
    if options.platforms:
        take_platform(options)
        print(show_platforms())
        return 0
    if options.json and not options.coverage:
        raise ConflictingOptionsError("--json is for --coverage")
    if options.as_plan and (options.coverage or options.ineligible or options.promises):
        raise ConflictingOptionsError("--plan prints cells, and --coverage, --ineligible and --promises do not")
    if options.promises:
        return _list_promises(options)
    plan = (whole_plan_of(options) if options.as_plan else plan_of(options)).select(options.patterns)
    if not (plan.cells or (plan.ineligible and not options.as_plan)):
        print("ERROR: no cell answers to that", file=sys.stderr)
        return UNUSABLE
    if options.coverage:
        implementations = options.implementations or IMPLEMENTATIONS
        where = (options.platform, options.devices, choice_of(options))
        print(show([coverage_of(plan, name, *where) for name in implementations], options.json))
    elif options.as_plan:
        print(plan_text(plan, _described(options)), end="")
    elif options.ineligible:
        _show_ineligible(plan.ineligible)
    else:
        for cell in plan.cells:
            print(cell.id, ",".join(cell.promises))
    return 0


def _show_ineligible(left_out: Sequence[Ineligible]) -> None:
    """Each cell with its reason, then each reason with the number of its cells."""
    for one in left_out:
        print(f"{one.id}: {one.reason}")
    print()
    for reason, count in Counter(one.reason for one in left_out).most_common():
        print(f"{count:7} {reason}")


def _list_promises(options: argparse.Namespace) -> int:
    if options.coverage or options.ineligible or options.patterns:
        raise ConflictingOptionsError(
            "--promises prints a table of the whole plan: leave --coverage, --ineligible and -k out"
        )
    # The promises are hostcb's own; cells of JAX's callbacks show nothing about them.
    options.implementations = options.implementations or ["hostcb"]
    table = promise_table(plan_of(options).cells)
    print(show_promises(table))
    return 1 if table.holes or table.stale else 0


def _described(options: argparse.Namespace) -> str:
    """The options that have selected the cells, as one would write them."""
    words = ["--platform", options.platform, "--devices", ",".join(map(str, options.devices))]
    words += [word for name in options.implementations or IMPLEMENTATIONS for word in ("--implementation", name)]
    words += ["--seed", str(options.seed)]
    words += [name for name, given in (("--full", options.full), ("--smoke", options.smoke)) if given]
    words += [word for pattern in options.patterns for word in ("-k", pattern)]
    return shlex.join(words)


_MAIN: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "list": _list,
    "repro": repro.main,
    "minimise": minimise.main,
    "mutants": mutants.main,
    "expect": expect.main,
    "bisect": bisect.main,
    "releases": releases.main,
    "never-run": never_run.main,
    "soak": soak.main,
}
