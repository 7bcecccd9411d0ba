#!/usr/bin/env python3
"""The reported bugs that distinguish releases of JAX, what their cells show with each release, and the page of that.

Run as a program, it runs the cells of ci/known_bugs.toml by the command `releases`, which gets the arguments, such as
`--resume`, and writes docs/known-bugs.md.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

from conformance.cli import commands  # noqa: E402
from conformance.oracle.verdicts import Outcome, Verdict  # noqa: E402
from conformance.releases.environments import OLDEST, Release, inside  # noqa: E402
from conformance.releases.table import Outcomes, table_of, tried  # noqa: E402
from conformance.reports.markup import code, grid, text  # noqa: E402
from conformance.reports.table import NOT_RUN, Table, several  # noqa: E402

LIST = PROJECT / "ci" / "known_bugs.toml"
PAGE = PROJECT / "docs" / "known-bugs.md"
RESULTS = PROJECT / "results" / "known-bugs"

BAD, GOOD, UNSUPPORTED, OTHERWISE = "bad", "good", "unsupported", "failing in another way"
UNKNOWN = "unknown"
"""The suite itself has failed: the release is neither bad nor good."""

MOST_OF_WITNESS = 160

_CHANGING = re.compile(r"0x[0-9a-f]{6,}|\b[FEW]\d{4} [\d:.]+ +\d+")
"""Addresses and process ids, which differ from run to run."""

_INTRODUCTION = """\
`nox -s known-bugs` made this page from [ci/known_bugs.toml](../ci/known_bugs.toml). The list has reported bugs of
JAX's own callbacks that distinguish releases. "Before" is what was found with small programs, before there was a cell.
"Here" is what the cells show: one run with each of {releases} from {first} to {last}, on CPU devices of a machine
with {cores}. A range like `0.4.31 to 0.6.1` has only the releases that ran, which are {versions}.

A bug is bad with a release if one of its cells fails there. One run that passes does not prove that a deadlock or a
race is gone. Below the table each bug has its cells, with their outcomes and the first line of the first witness.
"Differs" names each release of which the cells show something else than what was found before, and says why.
"""


@dataclass(frozen=True)
class Bug:
    id: str
    symptom: str
    link: str = ""
    bad: Sequence[str] = ()
    """The releases that were found to have the bug before: single ones, and ranges like 0.4.31..0.6.1 or ..0.5.0."""
    good: Sequence[str] = ()
    cells: Sequence[str] = ()
    """They fail where the bug is."""
    without_cells: str = ""
    """The reason if no cell shows the bug."""
    anomaly: str = ""
    """The kind of the failure, if another kind is not this bug."""
    refused: bool = False
    """Whether `unsupported` is the symptom, too."""
    deviation: str = ""
    """The explanation of what differs."""

    def __post_init__(self) -> None:
        for words in (*self.bad, *self.good):
            inside(OLDEST, words)
        if bool(self.cells) == bool(self.without_cells):
            raise ValueError("name its 'cells', or say in 'without_cells' why there are none")

    def said(self, version: str) -> str:
        """What was found before of a release; empty if nothing was."""
        if any(inside(version, one) for one in self.bad):
            return BAD
        return GOOD if any(inside(version, one) for one in self.good) else ""

    def found(self, release: Release, outcomes: Outcomes) -> str:
        """What the cells show of a release: that it is bad, if one of them does."""
        states = {self._state(outcomes[release, cell]) for cell in self.cells if (release, cell) in outcomes}
        return next((state for state in (BAD, OTHERWISE, UNSUPPORTED, UNKNOWN, GOOD) if state in states), NOT_RUN)

    def _state(self, outcome: Outcome) -> str:
        if outcome.verdict is Verdict.PASS:
            return GOOD
        if outcome.verdict is Verdict.HARNESS_ERROR:
            return UNKNOWN
        if outcome.verdict is Verdict.UNSUPPORTED:
            return BAD if self.refused else UNSUPPORTED
        return BAD if self.anomaly in ("", outcome.anomaly) else OTHERWISE

    def differences(self, outcomes: Outcomes) -> dict[Release, str]:
        """The releases of which the cells show something else than what was said: with both."""
        found = {release: (self.found(release, outcomes), self.said(release.jax)) for release in tried(outcomes)}
        return {
            release: f"{here}, not {before}"
            for release, (here, before) in found.items()
            if self.cells and before and here not in (before, UNKNOWN)
        }


@dataclass(frozen=True)
class KnownBugs:
    releases: tuple[str, ...]
    """Those with which the page is made."""
    bugs: tuple[Bug, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell for bug in self.bugs for cell in bug.cells))

    def problems(self, outcomes: Outcomes) -> Iterator[str]:
        """Differences without an explanation, and explanations without a difference, strictly both ways."""
        for bug in self.bugs:
            differences = bug.differences(outcomes)
            if differences and not bug.deviation:
                release, words = next(iter(differences.items()))
                yield f"{bug.id}: JAX {release.label} is {words}: explain that as its 'deviation'"
            elif bug.deviation and bug.cells and not differences:
                yield f"{bug.id}: its 'deviation' explains what does not differ"


def in_words(words: str) -> str:
    first, dots, last = words.partition("..")
    if first and last:
        return f"{first} to {last}"
    return f"{first}{' and newer' if dots else ''}" if first else f"{last} and older"


def load_known_bugs(file: Path = LIST) -> KnownBugs:
    data = tomllib.loads(file.read_text())
    bugs = tuple(Bug(**table) for table in data["bug"])
    return KnownBugs(tuple(data["releases"]), bugs)


def page(known: KnownBugs, outcomes: Outcomes) -> str:
    """What was found before beside what the cells show."""
    table = table_of(outcomes, known.cells)
    versions = [column.label for column in table.columns]
    introduction = _INTRODUCTION.format(
        releases=several(len(versions), "release"),
        first=versions[0],
        last=versions[-1],
        cores=several(os.cpu_count() or 1, "core"),
        versions=", ".join(versions),
    )
    lines = ["# Known bugs of JAX's callbacks, by release", ""]
    for paragraph in introduction.strip().split("\n\n"):
        lines += [textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False), ""]
    head = ["bug", "bad before", "good before", "bad here", "good here", "differs with"]
    lines += grid(head, (_line(bug, outcomes, table) for bug in known.bugs))
    for bug in known.bugs:
        lines += ["", f"## {text(bug.id)}", "", *_section(bug, table, outcomes)]
    return "\n".join(lines) + "\n"


def _line(bug: Bug, outcomes: Outcomes, table: Table) -> list[str]:
    releases, differences = tried(outcomes), bug.differences(outcomes)
    found = table.periods([bug.found(release, outcomes) for release in releases])
    differs = table.periods(["differs" if release in differences else "" for release in releases])
    name = f"[{text(bug.id)}]({bug.link})" if bug.link else text(bug.id)
    words = [name, ", ".join(map(in_words, bug.bad)), ", ".join(map(in_words, bug.good))]
    here = [(found, BAD), (found, GOOD), (differs, "differs")]
    words += [", ".join(where for where, word in periods if word == wanted) for periods, wanted in here]
    if not bug.cells:
        words[3] = "no cell"
    return [word or "-" for word in words]


def _section(bug: Bug, table: Table, outcomes: Outcomes) -> Iterator[str]:
    yield text(bug.symptom)
    if bug.without_cells:
        yield from ("", f"No cell shows it. {text(bug.without_cells)}")
    for row in (row for cell in bug.cells for row in table.rows if row.cell == cell):
        yield from ("", f"{code(row.cell)}:", "")
        witnesses = {one.words: one.witness for one in reversed(row.seen) if one}
        for where, word in table.periods(row.words):
            if word in witnesses:
                steady = _CHANGING.sub("...", witnesses[word])
                witness = text(textwrap.shorten(steady, MOST_OF_WITNESS, placeholder=" ..."))
                yield f"- {text(where)}: {text(word)}{f': {witness}' if witness else ''}"
    if differences := bug.differences(outcomes):
        periods = table.periods([differences.get(release, "") for release in tried(outcomes)])
        parts = "; ".join(f"{where}: {words}" for where, words in periods if words)
        yield from ("", f"**Differs.** {text(parts)}. {text(bug.deviation) or '(Not explained yet.)'}")


def main(arguments: Sequence[str]) -> int:
    known = load_known_bugs()
    cells = [word for cell in known.cells for word in ("--cell", cell)]
    # It has said which cells did not run with which release.
    if code := commands.main(["releases", *known.releases, *cells, "--results", str(RESULTS), *arguments]):
        return code
    outcomes = outcomes_in(RESULTS / "runs.jsonl")
    PAGE.write_text(page(known, outcomes), encoding="utf-8")
    problems = [*known.problems(outcomes)]
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


def outcomes_in(journal: Path) -> dict[tuple[Release, str], Outcome]:
    """By release and cell; of a cell that ran again, the last one counts."""
    runs = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
    return {(Release(*run["run"][:2]), run["run"][-1]): Outcome.from_json(run["outcome"]) for run in runs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
