"""Compares any number of runs, or the implementations or platforms of runs, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..oracle.verdicts import Verdict
from ..planning.keywords import any_of
from .results import KEPT_PROGRAMS, CellRecord, EventRecord, RunRecord
from .table import Column, Row, Seen, Table, Wording, in_words

WORDING = Wording(title="Cells compared", column="column", differ="differ", same="agree", ordered=False)
ANY = "*"
"""In the place of what a cell's id leaves open."""


class ComparisonError(Exception):
    """Runs that cannot be compared. The text is one line for users."""


def comparison(
    results: Mapping[str, Sequence[RunRecord]],
    *,
    by_implementation: bool = False,
    by_platform: bool = False,
    patterns: Sequence[str] = (),
) -> Table:
    """A table with a column for each of the named results, or for each implementation or platform in each of them."""
    selected = any_of(patterns) if patterns else lambda _: True
    columns: dict[str, dict[str, CellRecord]] = {}
    environments: dict[str, dict[str, Mapping[str, str]]] = {}
    notes: dict[str, str] = {}
    for name, runs in results.items():
        for run in runs:
            for cell in filter(lambda cell: selected(cell.id), run.cells):
                parts = [name] if len(results) > 1 or not (by_implementation or by_platform) else []
                parts += [cell.implementation] if by_implementation else []
                parts += [run.name] if by_platform else []
                label = " ".join(parts)
                columns.setdefault(label, {})[_matched(cell.id, run.platform, by_implementation, by_platform)] = cell
                environments.setdefault(label, {}).update(_environment(run, by_platform))
                if run.compiled:
                    notes[label] = f"some or all cells ran with {KEPT_PROGRAMS}"
    if len(columns) < 2:
        raise ComparisonError(
            f"a comparison needs two columns, and {_what_there_is(columns, patterns)}: name another results folder,"
            " or use --by-implementation or --by-platform"
        )
    cells = dict.fromkeys(cell for column in columns.values() for cell in column)
    rows = [_row(cell, [column.get(cell) for column in columns.values()]) for cell in cells]
    made = tuple(Column(label, environments[label], notes.get(label, "")) for label in columns)
    return Table(WORDING, made, tuple(rows))


def _matched(cell_id: str, platform: str, by_implementation: bool, by_platform: bool) -> str:
    """The id without what its column says."""
    implementation, callback, program, topology = cell_id.split("/")
    implementation = ANY if by_implementation else implementation
    if by_platform:
        topology = topology.replace(f"{platform}-", f"{ANY}-", 1)
    return "/".join((implementation, callback, program, topology))


def _environment(run: RunRecord, by_platform: bool) -> Iterator[tuple[str, dict[str, str]]]:
    for topology, info in run.environment.items():
        place = topology.replace(f"{run.platform}-", f"{ANY}-", 1) if by_platform else topology
        yield place, {name: str(value) for name, value in info.items()}


def _what_there_is(columns: Mapping[str, object], patterns: Sequence[str]) -> str:
    if columns:
        return f"there is {next(iter(columns))!r} alone"
    return "no cell answers to -k" if patterns else "there is no cell"


def _row(cell: str, found: Sequence[CellRecord | None]) -> Row:
    by_chance = any(record and record.known and record.known.intermittent for record in found)
    seen = tuple((_seen(record),) if record else () for record in found)
    return Row(cell, seen, "known to fail by chance" if by_chance else "")


def _seen(record: CellRecord) -> Seen:
    anomaly = "" if record.verdict == Verdict.PASS.value else record.anomaly or ""
    words = in_words(record.verdict, anomaly, record.stage or "")
    return Seen(words, record.verdict.partition("(")[0], record.witness, [_event(event) for event in record.history])


def _event(event: EventRecord) -> dict[str, object]:
    return vars(event)
