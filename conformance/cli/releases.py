"""The command `releases`: a table of cells by release."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..bisecting.line import tell
from ..engine.options import ConflictingOptionsError
from ..expectations.entries import Expectation, load_expectations
from ..oracle.verdicts import Outcome, Verdict
from ..releases.environments import Installer, Release, ReleaseError, check_tools
from ..releases.journal import RunJournal
from ..releases.table import known_failures, problems_of, table_of
from ..releases.trying import run_cells
from ..spec.package import COMMAND
from .helping import add_command
from .release_options import add_options, between, cells_of, conditions, repeated, running

WORSE = 1


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "releases",
        "Run cells with several releases of JAX, each in an environment of its own, and print a table of what changed.",
        [
            "0.6.2 0.7.0 0.8.3",
            "0.8.0.. -k 'jax and ordered'",
            "0.6.0..0.8.3 --resume",
            "0.8.3 0.10.2 0.12.0.1 --known-failures",
        ],
        {
            0: "all cells ran with all releases",
            1: "not all of them ran, the suite failed, or they are not as --expectations says",
            2: "nothing could be tried",
        },
    )
    add = parser.add_argument
    add(
        "versions",
        nargs="*",
        metavar="VERSION",
        help="releases: 0.8.3, 0.8.3:0.8.2 with another jaxlib, 0.6.0..0.8.3, 0.6.0.. or ..0.8.3 for all between",
    )
    add(
        "--cell",
        action="append",
        default=[],
        metavar="ID|@FILE",
        dest="cell_ids",
        help="this cell, or those in a file, as `list --plan` prints it; may be repeated",
    )
    add("--expectations", type=Path, metavar="FILE", help="known failures of these releases: others are an error")
    add("--known-failures", action="store_true", help="one cell of each known failure, with its report in the table")
    add_options(parser, "results/releases")


def main(options: argparse.Namespace) -> int:
    if options.expectations and not options.expectations.exists():
        raise ConflictingOptionsError(f"there is no {options.expectations}")
    check_tools()
    expected = load_expectations(options.expectations) if options.expectations else None
    # An old release has JAX's own callbacks alone.
    options.implementations = options.implementations or ["jax"]
    known = _known_cells(options) if options.known_failures else {}
    cells = [*known] or cells_of(options, options.cell_ids)
    unfinished = ""
    outcomes: dict[tuple[Release, str], Outcome] = {}
    problems: list[str] = []
    with running(options, Outcome.from_json) as (installer, journal):
        releases = releases_of(options.versions, installer)
        try:
            for place, release in enumerate(releases, 1):
                tell(f"JAX {release.label}, {place} of {len(releases)} releases")
                try:
                    for cell, outcome in _outcomes(options, installer, journal, release, cells):
                        outcomes[release, cell] = outcome
                        if outcome.verdict is Verdict.HARNESS_ERROR:
                            problems.append(f"{cell} with {release.label}: the suite failed: {outcome.reason}")
                except ReleaseError as error:
                    problems.append(f"{release.label} was not tried to the end: {error}")
                # The next environment has its disk.
                installer.remove(release)
        except KeyboardInterrupt:
            problems.append("the run was interrupted; --resume goes on")
            unfinished = f"Interrupted: {len(outcomes)} of {len(releases) * len(cells)} runs."
    from ..engine.preparation import known_failures_of

    if not outcomes:
        raise ReleaseError(problems[0])
    problems += problems_of(outcomes, cells, expected) if expected else ()
    explained = expected or load_expectations(known_failures_of(options.platform))
    table = table_of(outcomes, cells, explained, unfinished)
    print(table)
    if known:
        print(f"\n{known_failures(outcomes, known)}")
    # A range has run the releases between.
    between_runs = not any(".." in word or ":" in word for word in options.versions)
    for cell, before, after in table.changes if between_runs else ():
        ends = f"bisect {cell} --good {before} --bad {after} {repeated(options)}"
        print(f"\nto search the releases between: {COMMAND} {ends}".rstrip())
    for problem in problems:
        tell(f"ERROR: {problem}")
    return WORSE if problems else 0


def _known_cells(options: argparse.Namespace) -> dict[str, Expectation]:
    """The first planned cell of each known failure of the platform, with that failure."""
    if options.cell_ids or options.patterns:
        raise ConflictingOptionsError("--known-failures chooses the cells: leave out --cell and -k")
    from ..engine.preparation import known_failures_of, plan_of

    # Processes of one cell have the interpreter of the run.
    planned = [cell.id for cell in plan_of(options).cells if cell.topology.processes == 1]
    known = load_expectations(known_failures_of(options.platform))
    found = ((next(filter(entry.matches, planned), None), entry) for entry in known.entries)
    return {cell: entry for cell, entry in found if cell}


def releases_of(words: Sequence[str], installer: Installer) -> list[Release]:
    """The releases that the words name, the oldest first."""
    if not words:
        raise ConflictingOptionsError("name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3")
    found: set[Release] = set()
    for word in words:
        first, dots, end = word.partition("..")
        if first and end and Release.parse(first).order > Release.parse(end).order:
            raise ConflictingOptionsError(f"{word} is the wrong way round: name the older release first")
        found |= {*(between(installer, first, end) if dots else [Release.parse(word)])}
    return sorted(found, key=lambda release: release.order)


def _outcomes(
    options: argparse.Namespace,
    installer: Installer,
    journal: RunJournal[Outcome],
    release: Release,
    cells: Sequence[str],
) -> Iterator[tuple[str, Outcome]]:
    """The outcomes of cells with a release: those of the journal, then the others, which run."""
    words = (release.jax, release.jaxlib, conditions(options))
    found = {cell: outcomes[-1] for cell in cells if (outcomes := journal.of(*words, cell))}
    # The next run may show what an error of the suite has not.
    found = {cell: outcome for cell, outcome in found.items() if outcome.verdict is not Verdict.HARNESS_ERROR}
    yield from found.items()
    if missing := {cell: 1 for cell in cells if cell not in found}:
        environment = installer.environment(release)
        for cell, outcome in run_cells(environment, missing, options.deadline, options.results / "workers.log"):
            journal.add(outcome, *words, cell)
            yield cell, outcome
