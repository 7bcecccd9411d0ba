"""The commands of the campaign."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from conformance.planning.cells import UnknownCellError

from . import equivalents, sample
from .c import building
from .c import mutants as mutants_in_c
from .campaigning import Options, campaign, results_in
from .choice import chosen
from .coverage import StaleCoverageError, load
from .forks import in_forks
from .mutant import Mutant, mutants_of
from .overlay import PACKAGE
from .pool import cells_of_pool, exists, files_of_pool, is_test, named
from .recording import RecordingError, record
from .report import report
from .trial import KILLED, Job, Result, Until, try_mutant, untried

RESULTS = Path("results/mutation")
COUNT = 320
COUNT_IN_C = 80
SEED = 7


class UnknownMutantError(Exception):
    """The text of no mutant's id."""


_BAD_INPUT = (
    *(StaleCoverageError, RecordingError, equivalents.EquivalentsError, sample.KillsError),
    *(UnknownCellError, UnknownMutantError),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except _BAD_INPUT as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description="Change hostcb's source, one place at a time, and see which cells and tests notice.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, words in (
        ("list", _list, "print the chosen mutants"),
        ("record", _record, "record which cells and tests reach which lines, as far as the record lacks them"),
        ("run", _run, "record, and try the chosen mutants that the journal does not have"),
        ("try", _try, "try the mutants that -k names with the killers that --killer names, and write no journal"),
        ("report", _report, "write report.md of the chosen mutants in the journal"),
        ("sample", _sample, "try a few mutants, each with the cell or test that has killed it"),
    ):
        each = commands.add_parser(name, help=words, description=words.capitalize() + ".")
        each.set_defaults(command=command)
        each.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help=f"by default {RESULTS}")
        each.add_argument("-n", dest="workers", type=_positive, default=os.cpu_count() or 1, help="mutants at a time")
        of_sample = name == "sample"
        count = sample.COUNT if of_sample else COUNT
        each.add_argument("--count", type=_positive, default=count, help=f"how many mutants, by default {count}")
        if not of_sample:
            in_c = f"how many of the native extension beside them, by default {COUNT_IN_C}"
            each.add_argument("--c-count", type=_count, default=COUNT_IN_C, help=in_c)
        each.add_argument("--seed", type=int, default=SEED, help=f"of their choice, by default {SEED}")
        each.add_argument("-k", dest="words", default="", metavar="TEXT", help="only mutants whose id has this text")
        if name == "run":
            each.add_argument("--budget", type=float, default=90.0, metavar="SECONDS", help="for each mutant")
            each.add_argument("--minutes", type=float, default=1440.0, help="no further mutant begins after these")
            each.add_argument("--as-recorded", action="store_true", help="record nothing further")
            each.add_argument(
                "--until",
                type=Until,
                choices=(Until.FIRST, Until.ANOTHER),
                default=Until.FIRST,
                help="end the trial of a mutant at the first kill, or at one by a test, or another case or program",
            )
        if name == "try":
            help_ = "the id of a cell or a test; may be repeated"
            each.add_argument("--killer", action="append", required=True, metavar="ID", help=help_)
        if name == "report":
            each.add_argument("--save", action="store_true", help="write the kills to ci/mutation/, for the sample")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, not {text}")
    return number


def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def all_mutants() -> list[Mutant]:
    return [*mutants_of(PACKAGE), *mutants_in_c.mutants_of(PACKAGE)]


def _chosen(options: argparse.Namespace, mutants: Sequence[Mutant]) -> list[Mutant]:
    few = chosen([mutant for mutant in mutants if not building.is_c(mutant.module)], options.count, options.seed)
    in_c = [mutant for mutant in mutants if building.is_c(mutant.module)]
    if why := options.c_count and building.lacking():
        print(f"No mutants of the native extension: {why}.", file=sys.stderr)
    elif options.c_count:
        few += chosen(in_c, options.c_count, options.seed)
    return _with(options.words, few, "chosen mutant")


def _with(words: str, mutants: Sequence[Mutant], what: str) -> list[Mutant]:
    """The mutants that -k names."""
    found = [mutant for mutant in mutants if words in mutant.id]
    if words and not found:
        raise UnknownMutantError(
            f"no {what} has {words!r} in its id: `python -m mutation list` prints the ids, and a shell needs quotes"
            " around one with spaces"
        )
    return found


def _known(options: argparse.Namespace) -> tuple[list[Mutant], dict[str, str]]:
    """The chosen mutants, and the reasons of those that are equivalent."""
    mutants = all_mutants()
    reasons = equivalents.load(equivalents.FILE, {mutant.id for mutant in mutants})
    return _chosen(options, mutants), reasons


def _list(options: argparse.Namespace) -> int:
    mutants, _ = _known(options)
    for mutant in mutants:
        print(mutant.id, mutant.diff, sep="\n    ")
    return 0


def _record(options: argparse.Namespace) -> int:
    lines = options.results / "lines.jsonl"
    coverage = record(cells_of_pool(jax.__version__), files_of_pool(), lines, options.workers)
    for name, why in coverage.left_out.items():
        print(f"left out: {name}: {why}")
    return 0


def _run(options: argparse.Namespace) -> int:
    mutants, reasons = _known(options)
    mutants = [mutant for mutant in mutants if mutant.id not in reasons]
    # Of all modules from the start: a campaign that is stopped is a fair sample.
    random.Random(options.seed).shuffle(mutants)
    lines = options.results / "lines.jsonl"
    if options.as_recorded:
        coverage = load(lines, PACKAGE)
    else:
        coverage = record(cells_of_pool(jax.__version__), files_of_pool(), lines, options.workers)
    kills = sample.load()
    earlier = {mutant.id: kills[mutant.id] for mutant in mutants if mutant.id in kills}
    # Of tests, those that were recorded passed with the unchanged source.
    earlier = {name: each for name, each in earlier.items() if each in coverage.reached or not is_test(each)}
    pool = named(each for each in {*coverage.reached, *earlier.values()} if exists(each))
    path = options.results / "journal.jsonl"
    how = Options(path, options.workers, options.budget, options.minutes, options.until)
    for result in campaign(mutants, pool, coverage, how, earlier):
        place = next(number for number, mutant in enumerate(mutants, 1) if mutant.id == result.id)
        _show(f"{place}/{len(mutants)}", result)
    return 0


def _try(options: argparse.Namespace) -> int:
    mutants = _with(options.words, all_mutants(), "mutant")
    checks = tuple(named(options.killer).values())
    options.results.mkdir(parents=True, exist_ok=True)
    log = options.results / "trials.log"
    jobs = (Job(mutant, checks, {}, math.inf, until=Until.ALL) for mutant in mutants)
    results = in_forks(jobs, options.workers, lambda job: try_mutant(job, log).as_json())
    for number, (_, reported) in enumerate(results, 1):
        _show(f"{number}/{len(mutants)}", Result.from_json(reported))
    return 0


def _report(options: argparse.Namespace) -> int:
    mutants, reasons = _known(options)
    found = results_in(options.results / "journal.jsonl")
    results = [found.get(mutant.id) or untried(mutant) for mutant in mutants if mutant.id in {*found, *reasons}]
    page = options.results / "report.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    pool = [task.id for task in cells_of_pool(jax.__version__)]
    page.write_text(report(results, reasons, len(mutants), pool))
    print(page.read_text().splitlines()[2], f"The report is {page}.", sep="\n")
    if options.save:
        sample.save(results, {mutant.id for mutant in all_mutants()}, sample.KILLS)
    return 0


def _sample(options: argparse.Namespace) -> int:
    mutants = all_mutants()
    reasons = equivalents.load(equivalents.FILE, {mutant.id for mutant in mutants})
    kills = {name: killer for name, killer in sample.load().items() if name not in reasons}
    few = sample.drawn([mutant for mutant in mutants if options.words in mutant.id], kills, options.count, options.seed)
    options.results.mkdir(parents=True, exist_ok=True)
    results = []
    for result in sample.try_sample(few, kills, options.workers, options.results / "sample.log"):
        results.append(result)
        _show(f"{len(results)}/{len(few)}", result)
    survived = [result for result in results if result.verdict != KILLED]
    print(f"{len(results) - len(survived)} of {len(results)} mutants are killed")
    if not results and not options.words:
        print(
            "ERROR: the source has none of the mutants of ci/mutation/kills.json any more: run a campaign",
            file=sys.stderr,
        )
        return 2
    return 1 if survived else 0


def _show(number: str, result: Result) -> None:
    what = f": {result.tried} of {result.reaching} cells and tests"
    by = f" by {result.killer}: {result.how[:80]}" if result.killer else what
    print(f"{number} {result.seconds:.0f} s {result.verdict}{by}\n    {result.diff[:200]}", flush=True)
