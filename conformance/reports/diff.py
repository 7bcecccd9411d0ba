"""The differences between two runs, or between two implementations, cell by cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..planning.keywords import any_of
from .results import KEPT_PROGRAMS, CellRecord, RunRecord
from .visible import in_a_line


class NothingToCompareError(Exception):
    """A choice of cells that leaves none."""


@dataclass(frozen=True)
class Change:
    """A cell in both runs, or in one of them."""

    name: str
    """Its id, without the implementation if two implementations are compared."""
    before: CellRecord | None
    after: CellRecord | None
    left_out: str = ""
    """The reason why the run without the cell left it out, if that run says one."""

    @property
    def lines(self) -> list[str]:
        absent = f"not applicable: {self.left_out}" if self.left_out else ""
        was, now = _words(self.before) or absent, _words(self.after) or absent
        lines = [f"{self.name}: {' -> '.join(filter(None, (was, now)))}"]
        if self.after is not None and not self.after.passed:
            lines += [f"    {self.after.witness.partition(chr(10))[0][:300]}", f"    {self.after.reproduce}"]
        return lines


@dataclass(frozen=True)
class Difference:
    """Each list in the order of the newer run; the lists compare actual results, not expectations."""

    fixed: tuple[Change, ...]
    broken: tuple[Change, ...]
    changed: tuple[Change, ...]
    new: tuple[Change, ...]
    gone: tuple[Change, ...]
    intermittent: tuple[Change, ...]
    """Two results that differ, both expected of a cell with an intermittent failure."""
    environment: tuple[str, ...]
    sides: tuple[str, str] = ("A", "B")
    """The names of the two sides."""
    only_common: bool = False
    """Whether cells of one side alone are only counted."""

    @property
    def worse(self) -> bool:
        """A cell that is gone counts: a run that tests less must not look better."""
        return bool(self.broken or self.changed or (self.gone and not self.only_common))

    def __str__(self) -> str:
        lines = [f"environment: {line}" for line in self.environment]
        of_one_side = () if self.only_common else ("gone", "new")
        for name in ("broken", "changed", *of_one_side[:1], "fixed", *of_one_side[1:], "intermittent"):
            for change in getattr(self, name):
                first, *rest = change.lines
                lines += [f"{name.upper()}: {first}", *rest]
        before, after = self.sides
        lines += [*_alone(self.gone, before, after), *_alone(self.new, after, before)]
        lines.append(
            f"{len(self.fixed)} fixed, {len(self.broken)} broken, {len(self.changed)} changed,"
            f" {len(self.new)} new, {len(self.gone)} gone"
            + (f", {len(self.intermittent)} intermittent" if self.intermittent else "")
        )
        return "\n".join(map(in_a_line, lines))


def _alone(changes: Sequence[Change], side: str, other: str) -> Iterator[str]:
    """How many cells only one side has, and why the other one has none of them."""
    unsaid = sum(not change.left_out for change in changes)
    if unsaid:
        yield f"only in {side}: {unsaid} cell{'s' * (unsaid > 1)} not selected in {other}"
    for reason, count in Counter(change.left_out for change in changes if change.left_out).items():
        yield f"only in {side}: {count} cell{'s' * (count > 1)} not applicable in {other}: {reason}"


def difference(
    before: Sequence[RunRecord],
    after: Sequence[RunRecord],
    patterns: Sequence[str] = (),
    implementations: tuple[str, str] | None = None,
    only_common: bool = False,
) -> Difference:
    """Compare two runs, or one implementation of the first with another one of the second.

    `patterns` are expressions as for `-k`: cells whose names match none of them are not compared.
    """
    sides = implementations or ("A", "B")
    old = _cells(before, implementations[0] if implementations else None, patterns)
    new = _cells(after, implementations[1] if implementations else None, patterns)
    if patterns and not old and not new:
        raise NothingToCompareError(f"no cell of {sides[0]} or {sides[1]} answers to {' or '.join(patterns)}")
    both = [Change(name, old[name], new[name]) for name in new if name in old]
    if only_common and not both:
        raise NothingToCompareError(f"{sides[0]} and {sides[1]} have no cell in common")

    def those(wanted: Callable[[CellRecord, CellRecord], bool]) -> tuple[Change, ...]:
        return tuple(
            change for change in both if change.before and change.after and wanted(change.before, change.after)
        )

    left_out_of_old, left_out_of_new = (
        {_name(cell_id, side): reason for run in runs for cell_id, reason in run.left_out.items()}
        for runs, side in zip((before, after), implementations or (None, None), strict=True)
    )
    return Difference(
        fixed=those(lambda was, now: not was.passed and now.passed and not _by_chance(was, now)),
        broken=those(lambda was, now: was.passed and not now.passed and not _by_chance(was, now)),
        changed=those(
            lambda was, now: not was.passed and not now.passed and _changed(was, now) and not _rate_alone(was, now)
        ),
        new=tuple(
            Change(name, None, cell, left_out_of_old.get(name, "")) for name, cell in new.items() if name not in old
        ),
        gone=tuple(
            Change(name, cell, None, left_out_of_new.get(name, "")) for name, cell in old.items() if name not in new
        ),
        intermittent=those(
            lambda was, now: _rate_alone(was, now) or (was.passed != now.passed and _by_chance(was, now))
        ),
        environment=(*_environment(before, after), *_kept(before, sides[0]), *_kept(after, sides[1])),
        sides=sides,
        only_common=only_common,
    )


def _cells(runs: Sequence[RunRecord], implementation: str | None, patterns: Sequence[str]) -> dict[str, CellRecord]:
    """The cells of one side by their names."""
    cells = [cell for run in runs for cell in run.cells]
    found = {cell.implementation for cell in cells}
    if implementation is not None and implementation not in found:
        raise NothingToCompareError(
            f"there is no cell of {implementation}, only of {', '.join(sorted(found)) or 'none'}"
        )
    named = {_name(cell.id, implementation): cell for cell in cells if implementation in (None, cell.implementation)}
    wanted = any_of(patterns)
    return {name: cell for name, cell in named.items() if not patterns or wanted(name)}


def _name(cell_id: str, implementation: str | None) -> str:
    """The id, without the implementation if there is one to compare."""
    return cell_id if implementation is None else cell_id.removeprefix(f"{implementation}/")


def _by_chance(was: CellRecord, now: CellRecord) -> bool:
    """Whether both results are expected of a cell with an intermittent failure."""
    return (
        was.standing.acceptable
        and now.standing.acceptable
        and any(cell.known is not None and cell.known.intermittent for cell in (was, now))
    )


def _rate_alone(was: CellRecord, now: CellRecord) -> bool:
    """Whether only the rate of an intermittent failure differs."""
    alike = (was.verdict, was.stage, was.anomaly) == (now.verdict, now.stage, now.anomaly)
    return alike and _by_chance(was, now) and _rates_differ(was, now)


def _changed(was: CellRecord, now: CellRecord) -> bool:
    if (was.verdict, was.stage) != (now.verdict, now.stage) or _rates_differ(was, now):
        return True
    # Files of earlier versions do not name the anomaly.
    return None not in (was.anomaly, now.anomaly) and was.anomaly != now.anomaly


def _rates_differ(was: CellRecord, now: CellRecord) -> bool:
    """Whether repeated runs failed more often on one side than chance explains: their intervals do not meet."""
    if was.repetition is None or now.repetition is None:
        return False
    (low, high), (other_low, other_high) = was.repetition.interval, now.repetition.interval
    return high < other_low or other_high < low


def _words(cell: CellRecord | None) -> str:
    if cell is None:
        return ""
    stage = f" at {cell.stage}" if cell.stage else ""
    anomaly = f" ({cell.anomaly})" if cell.anomaly else ""
    repeated = f", {cell.repetition.words}" if cell.repetition else ""
    return f"{cell.verdict}{stage}{anomaly}{repeated}"


def _kept(runs: Sequence[RunRecord], side: str) -> Iterator[str]:
    if any(run.compiled for run in runs):
        yield f"{side} ran with {KEPT_PROGRAMS}"


def _environment(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> tuple[str, ...]:
    """The changes in the environment of each topology between the two runs."""
    old = {topology: info for run in before for topology, info in run.environment.items()}
    new = {topology: info for run in after for topology, info in run.environment.items()}
    return tuple(
        f"{topology}: {name} {old[topology][name]} -> {info[name]}"
        for topology, info in new.items()
        for name in info
        if topology in old and name in old[topology] and old[topology][name] != info[name]
    )
