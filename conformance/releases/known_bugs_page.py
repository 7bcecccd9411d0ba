"""The page about known bugs, as Markdown: what was found before beside what the cells show."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..reports.markup import code, text
from ..reports.table import NOT_RUN, Row, Table, consecutive, several
from ..reports.table_pages import witness_of
from ..spec.package import COMMAND
from .known_bugs import Bug, KnownBugs, Range
from .release import Release
from .table import Outcomes, table_of, tried

NOTHING = "-"
MOST_OF_WITNESS = 160

_CHANGING = re.compile(r"0x[0-9a-f]{6,}|\b[FEW]\d{4} [\d:.]+ +\d+")


_INTRODUCTION = """\
`{command} releases --known-bugs` made this page from [{file}](../{file}), and `nox -s known-bugs` makes it again. The
list has reported bugs of JAX's own callbacks that tell releases apart. "Before" is what was found with small programs,
before there was a cell. "Here" is what the cells show: {runs} with each of {releases} from {first} to {last}, on CPU
devices of a machine with {cores}. A range like `0.4.31 to 0.6.1` has only the releases that ran, which are {versions}.

A bug is bad with a release if one of its cells fails there. One run that passes does not prove that a deadlock or a
race is gone. Below the table each bug has its cells, with what came of them and the first line of the first witness.
"Differs" names each release of which the cells show something else than what was found before, and says why.
"""


def page(known: KnownBugs, file: Path, outcomes: Outcomes) -> str:
    table, releases = table_of(outcomes, known.cells), tried(outcomes)
    rows = {row.cell: row for row in table.rows}
    versions = [release.label for release in releases]
    counts = sorted({*map(len, outcomes.values())})
    introduction = _INTRODUCTION.format(
        command=COMMAND,
        file=file,
        runs="one run" if counts == [1] else f"{' to '.join(map(str, {counts[0]: 0, counts[-1]: 0}))} runs",
        releases=several(len(releases), "release"),
        first=versions[0],
        last=versions[-1],
        cores=several(os.cpu_count() or 1, "core"),
        versions=", ".join(versions),
    )
    lines = ["# Known bugs of JAX's callbacks, by release", ""]
    for paragraph in introduction.strip().split("\n\n"):
        lines += [textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False), ""]
    lines += ["| bug | bad before | good before | bad here | good here | differs with |", "| --- " * 6 + "|"]
    lines += [_line(bug, releases, outcomes) for bug in known.bugs]
    for bug in known.bugs:
        lines += ["", f"## {text(bug.id)}", "", *_section(bug, table, rows, releases, outcomes)]
    return "\n".join(lines) + "\n"


def _line(bug: Bug, releases: Sequence[Release], outcomes: Outcomes) -> str:
    states = [bug.found(release, outcomes) for release in releases]
    found = {state: ", ".join(_those(releases, states, state)) for state in ("bad", "good")}
    differing = {release for release, _, _ in bug.differences(releases, outcomes)}
    differs = ", ".join(_those(releases, [str(release in differing) for release in releases], "True"))
    name = f"[{text(bug.id)}]({bug.link})" if bug.link else text(bug.id)
    words = [name, _ranges(bug.bad), _ranges(bug.good)]
    words += [found["bad"], found["good"], differs] if bug.cells else ["no cell", "", ""]
    return f"| {' | '.join(word or NOTHING for word in words)} |"


def _those(releases: Sequence[Release], states: Sequence[str], wanted: str) -> Iterator[str]:
    labels = [release.label for release in releases]
    return (where for where, state in consecutive(labels, states) if state == wanted)


def _ranges(ranges: Sequence[Range]) -> str:
    return ", ".join(map(str, ranges))


def _section(
    bug: Bug, table: Table, rows: dict[str, Row], releases: Sequence[Release], outcomes: Outcomes
) -> Iterator[str]:
    yield text(bug.symptom)
    if bug.without_cells:
        yield from ("", f"No cell shows it. {text(bug.without_cells)}")
    for cell in bug.cells:
        yield from ("", f"{code(cell)}:", "")
        row = rows[cell]
        for where, word in table.periods(row.words):
            if word != NOT_RUN:
                yield f"- {text(where)}: {text(word)}{_witness(table, row, word)}"
    if differences := list(bug.differences(releases, outcomes)):
        how = {release: f"{found}, not {said}" for release, said, found in differences}
        periods = consecutive([release.label for release in releases], [how.get(release, "") for release in releases])
        parts = "; ".join(f"{where}: {words}" for where, words in periods if words)
        yield from ("", f"**Differs.** {text(parts)}. {text(bug.deviation) or '(Not explained yet.)'}")


def _witness(table: Table, row: Row, word: str) -> str:
    runs = next((runs for runs, of in zip(row.seen, row.words, strict=True) if of == word), ())
    witness = witness_of(runs)
    # Addresses and process ids differ from run to run.
    steady = _CHANGING.sub("...", witness)
    return f": {text(textwrap.shorten(steady, MOST_OF_WITNESS, placeholder=' ...'))}" if witness else ""
