"""Markdown that fits into the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..oracle.repetition import CONFIDENCE, percent
from ..oracle.verdicts import ExpectationStatus
from .capabilities import table_of
from .causes import grouped
from .markup import code, fenced, grid, link, text
from .results import CellRecord, RunRecord, known_failures
from .table import several
from .visible import visible

MOST_SHOWN = 100
"""Summaries have a limited size; the HTML page has all results."""


def markdown(runs: Sequence[RunRecord]) -> str:
    return visible("\n".join(line for run in runs for line in _run(run)) + "\n")


def _run(run: RunRecord) -> Iterable[str]:
    yield f"# Conformance on {text(run.name)}: {'as expected' if run.good else 'NOT as expected'}"
    yield ""
    yield from (f"- {name}: {text(value)}" for name, value in (run.facts | run.origin).items() if value)
    yield from _problems(run)
    yield from _unexpected(run)
    yield from _capabilities(run)
    yield from _repeated(run.cells)
    yield from _matrices(run.cells)
    yield from _known(run.cells)


def _capabilities(run: RunRecord) -> Iterable[str]:
    """What was observed of each capability, and of each claim of the vendor."""
    columns, rows = table_of(run.capabilities)
    if columns:
        yield from ("", "## Capabilities", "")
        words = {name: f": {text(first.words)}" if first.words else "" for name, (first, *_) in rows.items()}
        lines = ([f"{code(name)}{words[name]}", *(row.counted for row in own)] for name, own in rows.items())
        yield from grid(["capability", *map(text, columns)], lines)
    if run.claims:
        yield ""
        yield from (f"- {'**FAILED**: ' if claim.failed else ''}{text(claim.sentence)}" for claim in run.claims)


def _problems(run: RunRecord) -> Iterable[str]:
    if run.problems:
        yield from ("", "## Problems of the run", "")
        for problem in run.problems:
            yield from fenced(problem)


def _unexpected(run: RunRecord) -> Iterable[str]:
    """Each cause with its cells, and the witness of the first."""
    groups = grouped(run)
    if not groups:
        return
    yield from ("", f"## Unexpected: {len(run.unexpected)}, for {several(len(groups), 'cause')}")
    for group in groups[:MOST_SHOWN]:
        yield from ("", f"**{text(group.title)}**: {several(len(group.cells), 'cell')}", "")
        others = [cell.id for cell in group.cells[1:MOST_SHOWN]]
        rest = [f"... and {len(group.cells) - MOST_SHOWN} more cells"] if len(group.cells) > MOST_SHOWN else []
        command = f"$ {group.example.reproduce}"
        if group.notes:
            yield from (*(f"- {text(note)}" for note in group.notes), "")
        yield from fenced("\n".join([*group.witness, command, *others, *rest]))
    if len(groups) > MOST_SHOWN:
        yield from ("", f"and {len(groups) - MOST_SHOWN} more causes.")


def _repeated(cells: Sequence[CellRecord]) -> Iterable[str]:
    """How often each cell failed, the highest rate first."""
    found = [(cell, cell.repetition) for cell in cells if cell.repetition]
    if not found:
        return
    found.sort(key=lambda one: -one[1].rate)
    yield from ("", "## Repeated runs", "")
    yield f"The interval holds the rate of failure with a confidence of {100 * CONFIDENCE:.0f} %."
    yield ""
    rows = []
    for cell, repetition in found[:MOST_SHOWN]:
        failed, rate = f"{repetition.failures} of {repetition.judged}", percent(repetition.rate)
        interval = " to ".join(map(percent, repetition.interval))
        rows.append([code(cell.id), failed, rate, interval, text(repetition.ways_in_words)])
    yield from grid(["cell", "failed", "rate", "interval", "outcomes"], rows)
    if len(found) > MOST_SHOWN:
        yield from ("", f"and {len(found) - MOST_SHOWN} more.")


def _matrices(cells: Sequence[CellRecord]) -> Iterable[str]:
    """Callbacks down, transforms across; a cell counts in the column of every transform it is made of."""
    for implementation in dict.fromkeys(cell.implementation for cell in cells):
        own = [cell for cell in cells if cell.implementation == implementation]
        columns = sorted(dict.fromkeys(name for cell in own for name in cell.transforms), key=_column_rank)
        yield from ("", f"## {text(implementation)}", "")
        rows = []
        for callback in dict.fromkeys(cell.callback for cell in own):
            of_callback = [cell for cell in own if cell.callback == callback]
            entries = (_entry([cell for cell in of_callback if column in cell.transforms]) for column in columns)
            rows.append([code(callback), *entries])
        yield from grid(["callback", *map(text, columns)], rows, align=":-:")
    if cells:
        yield from ("", "✓ all passed; ~ so many known failures; ✗ so many unexpected results; empty: no such cell.")


def _column_rank(name: str) -> int:
    return ("table", "case").index(name) + 1 if name in ("table", "case") else 0


def _entry(cells: Sequence[CellRecord]) -> str:
    if not cells:
        return ""
    unexpected = sum(not cell.status.acceptable for cell in cells)
    known = sum(cell.status is ExpectationStatus.KNOWN_FAILURE for cell in cells)
    marks = [f"✗{unexpected}"] if unexpected else []
    marks += [f"~{known}"] if known else []
    return " ".join(marks) or "✓"


def _known(cells: Sequence[CellRecord]) -> Iterable[str]:
    groups = known_failures(cells)
    if not groups:
        return
    yield from ("", "## Known failures", "")
    for known, failed in groups.items():
        example = code(failed[0].id)
        which = example if len(failed) == 1 else f"{len(failed)} cells, {example} for one"
        yield f"- {which}: {code(known.verdict)}. {text(known.reason)} {link(known.link)}"
