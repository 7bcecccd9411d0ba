"""What became different from one run, or implementation, or platform, to another, cell by cell.

It compares actual results, and not expectations. Two columns are listed; the table of more is in `table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..oracle.verdicts import Verdict
from ..planning.keywords import any_of
from ..spec.errors import CommandError
from .results import CellRecord, Known, RunRecord
from .table import Column, Row, Seen, Table
from .visible import clipped, in_a_line

ANY = "*"
"""In the place of the implementation in a cell's id."""

MOST_ALONE = 10
"""So many of the cells that one side alone has are named."""


class NothingToCompareError(CommandError):
    """Results that cannot be compared. The text is one line for users."""


@dataclass
class Side:
    """One column of a comparison."""

    label: str
    cells: dict[str, CellRecord] = field(default_factory=dict)
    """By the part of their ids that all columns have in common."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The reasons why cells of these names did not run."""
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    """What the workers reported of machine and software, by topology."""


def sides(
    results: Mapping[str, Sequence[RunRecord]], implementations: Sequence[str] = (), patterns: Sequence[str] = ()
) -> list[Side]:
    """A column for each of the named results, or for each of the implementations in each of them."""
    ids = [cell.id for runs in results.values() for run in runs for cell in run.cells]
    wanted = any_of(patterns, ids)
    found: dict[str, Side] = {}
    for name, runs in results.items():
        # In the order in which the implementations are named: the last column is the newer one.
        for implementation in implementations or (ANY,):
            cells = [one for run in runs for one in run.cells if implementation in (ANY, one.implementation)]
            cells = [one for one in cells if not patterns or wanted(one.id)]
            if implementations and not cells:
                continue
            own = [implementation] if implementations else []
            side = Side(" ".join([name, *own] if len(results) > 1 or not own else own))
            side.cells = {_matched(cell.id, implementation): cell for cell in cells}
            for run in runs:
                side.left_out |= {_matched(one, implementation): why for one, why in run.left_out.items()}
                for topology, info in run.environment.items():
                    side.environment[topology] = {name: str(value) for name, value in info.items()}
            found[side.label] = side
    if not any(side.cells for side in found.values()):
        there = {cell.implementation for runs in results.values() for run in runs for cell in run.cells}
        raise NothingToCompareError(f"no cell matches; there are cells of {', '.join(sorted(there)) or 'nothing'}")
    if len(found) < 2:
        raise NothingToCompareError(
            f"a comparison needs two columns, and there is {next(iter(found))!r} alone: name another results folder,"
            " or another --implementation"
        )
    return [*found.values()]


def _matched(cell_id: str, implementation: str) -> str:
    """The id without what its column says."""
    if implementation != ANY and cell_id.startswith(f"{implementation}/"):
        return ANY + cell_id.removeprefix(implementation)
    return cell_id


def comparison(columns: Sequence[Side], *, only_common: bool = False) -> Table:
    """The table of any number of columns, cell by cell."""
    cells = dict.fromkeys(cell for side in columns for cell in side.cells)
    rows = [_row(cell, [side.cells.get(cell) for side in columns]) for cell in cells]
    rows = [row for row in rows if all(row.seen)] if only_common else rows
    return _table(columns, rows)


def _table(columns: Sequence[Side], rows: Sequence[Row]) -> Table:
    return Table(tuple(Column(side.label, side.environment) for side in columns), tuple(rows))


def _row(cell: str, found: Sequence[CellRecord | None]) -> Row:
    records = [record for record in found if record]
    allowed = all(record.status.acceptable for record in records)
    by_chance = allowed and any(record.known and record.known.intermittent for record in records)
    seen = (Seen.of(one.words, one.witness) if one else None for one in found)
    return Row(cell, tuple(seen), by_chance)


class Kind(Enum):
    BROKEN = "broken"
    CHANGED = "changed"
    GONE = "gone"
    FIXED = "fixed"
    NEW = "new"
    INTERMITTENT = "intermittent"
    """Both results are expected of a cell with an intermittent failure."""


@dataclass(frozen=True)
class Change:
    """A cell on both sides, or on one of them."""

    name: str
    before: CellRecord | None
    after: CellRecord | None
    left_out: str = ""
    """The reason why the side without the cell left it out, if that side names one."""

    def passed(self) -> bool:
        return all(cell is None or cell.passed for cell in (self.before, self.after))

    @property
    def lines(self) -> list[str]:
        absent = f"not applicable: {self.left_out}" if self.left_out else ""
        was, now = _words(self.before) or absent, _words(self.after) or absent
        lines = [f"{self.name}: {' -> '.join(filter(None, (was, now)))}"]
        if self.after is not None and not self.after.passed:
            lines += [f"    {clipped(self.after.witness.partition(chr(10))[0])}", f"    {self.after.reproduce}"]
        return lines


@dataclass(frozen=True)
class Difference:
    changes: Mapping[Kind, Sequence[Change]]
    """In the order of the newer side."""
    before: Side
    after: Side
    only_common: bool = False
    """Whether cells of one side alone are only counted."""

    @property
    def worse(self) -> bool:
        """A cell that is gone counts: a run that tests less must not look better."""
        gone = self.changes[Kind.GONE] and not self.only_common
        return bool(self.changes[Kind.BROKEN] or self.changes[Kind.CHANGED] or gone)

    def __str__(self) -> str:
        differing = _table([self.before, self.after], []).environments
        lines = [f"environment: {name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in differing.items()]
        for kind, changes in self.changes.items():
            alone = kind in (Kind.GONE, Kind.NEW)
            # Of a selection and a full run, one side alone has thousands: those that failed come first.
            shown = sorted(changes, key=Change.passed)[: 0 if self.only_common else MOST_ALONE] if alone else changes
            for change in shown:
                first, *rest = change.lines
                lines += [f"{kind.name}: {first}", *rest]
            if shown and len(shown) < len(changes):
                lines.append(f"{kind.name}: {len(changes) - len(shown)} more")
        lines += _alone(self.changes[Kind.GONE], self.before.label, self.after.label)
        lines += _alone(self.changes[Kind.NEW], self.after.label, self.before.label)
        counted = [Kind.FIXED, Kind.BROKEN, Kind.CHANGED, Kind.NEW, Kind.GONE]
        counted += [Kind.INTERMITTENT] if self.changes[Kind.INTERMITTENT] else []
        lines.append(", ".join(f"{len(self.changes[kind])} {kind.value}" for kind in counted))
        return "\n".join(map(in_a_line, lines))


def difference(before: Side, after: Side, *, only_common: bool = False) -> Difference:
    old, new = before.cells, after.cells
    if only_common and not old.keys() & new.keys():
        raise NothingToCompareError(f"{before.label} and {after.label} have no cell in common")
    changes: dict[Kind, list[Change]] = {kind: [] for kind in Kind}
    for name, now in new.items():
        if name not in old:
            changes[Kind.NEW].append(Change(name, None, now, before.left_out.get(name, "")))
        elif kind := _kind(old[name], now):
            changes[kind].append(Change(name, old[name], now))
    changes[Kind.GONE] = [
        Change(name, was, None, after.left_out.get(name, "")) for name, was in old.items() if name not in new
    ]
    return Difference(changes, before, after, only_common)


def _kind(was: CellRecord, now: CellRecord) -> Kind | None:
    """The kind of change of a cell that both sides have; None if nothing changed."""
    alike = (was.verdict, was.stage, was.anomaly) == (now.verdict, now.stage, now.anomaly)
    if alike and not _rates_differ(was, now):
        return None
    entry = next((cell.known for cell in (was, now) if cell.known is not None and cell.known.intermittent), None)
    if entry and _allows(entry, was) and now.status.acceptable and (alike or was.passed != now.passed):
        return Kind.INTERMITTENT
    if was.passed:
        return None if now.passed else Kind.BROKEN
    return Kind.FIXED if now.passed else Kind.CHANGED


def _allows(entry: Known, cell: CellRecord) -> bool:
    """Whether an older result is one of an intermittent failure, which its run may not have listed yet."""
    return cell.status.acceptable or (cell.known is None and cell.verdict in (entry.verdict, Verdict.FLAKE.value))


def _rates_differ(was: CellRecord, now: CellRecord) -> bool:
    """Whether repeated runs failed more often on one side than chance explains: their intervals do not meet."""
    if was.repetition is None or now.repetition is None:
        return False
    (low, high), (other_low, other_high) = was.repetition.interval, now.repetition.interval
    return high < other_low or other_high < low


def _words(cell: CellRecord | None) -> str:
    if cell is None:
        return ""
    return cell.words + (f", {cell.repetition.words}" if cell.repetition else "")


def _alone(changes: Sequence[Change], side: str, other: str) -> Iterator[str]:
    """How many cells only one side has, and why the other one has none of them."""
    unsaid = sum(not change.left_out for change in changes)
    if unsaid:
        yield f"only in {side}: {unsaid} cell{'s' * (unsaid > 1)} not selected in {other}"
    for reason, count in Counter(change.left_out for change in changes if change.left_out).items():
        yield f"only in {side}: {count} cell{'s' * (count > 1)} not applicable in {other}: {reason}"
