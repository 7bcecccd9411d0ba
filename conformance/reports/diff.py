"""The differences between two runs, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .results import CellRecord, RunRecord


@dataclass(frozen=True)
class Change:
    """A cell in both runs, or in one of them."""

    before: CellRecord | None
    after: CellRecord | None

    @property
    def lines(self) -> list[str]:
        cell = self.after or self.before
        assert cell is not None
        was, now = _words(self.before), _words(self.after)
        lines = [f"{cell.id}: {' -> '.join(filter(None, (was, now)))}"]
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
    environment: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """A cell that is gone counts: a run that tests less must not look better."""
        return bool(self.broken or self.changed or self.gone)

    def __str__(self) -> str:
        lines = [f"environment: {line}" for line in self.environment]
        for name in ("broken", "changed", "gone", "fixed", "new"):
            for change in getattr(self, name):
                first, *rest = change.lines
                lines += [f"{name.upper()}: {first}", *rest]
        lines.append(
            f"{len(self.fixed)} fixed, {len(self.broken)} broken, {len(self.changed)} changed,"
            f" {len(self.new)} new, {len(self.gone)} gone"
        )
        return "\n".join(lines)


def difference(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> Difference:
    old, new = _by_id(before), _by_id(after)
    both = [Change(old[cell_id], new[cell_id]) for cell_id in new if cell_id in old]

    def those(wanted: Callable[[CellRecord, CellRecord], bool]) -> tuple[Change, ...]:
        return tuple(
            change for change in both if change.before and change.after and wanted(change.before, change.after)
        )

    return Difference(
        fixed=those(lambda was, now: not was.passed and now.passed and not _by_chance(was, now)),
        broken=those(lambda was, now: was.passed and not now.passed and not _by_chance(was, now)),
        changed=those(lambda was, now: not was.passed and not now.passed and _changed(was, now)),
        new=tuple(Change(None, cell) for cell_id, cell in new.items() if cell_id not in old),
        gone=tuple(Change(cell, None) for cell_id, cell in old.items() if cell_id not in new),
        environment=_environment(before, after),
    )


def _by_id(runs: Sequence[RunRecord]) -> dict[str, CellRecord]:
    return {cell.id: cell for run in runs for cell in run.cells}


def _by_chance(was: CellRecord, now: CellRecord) -> bool:
    """Whether both results are expected of a cell with an intermittent failure."""
    return (
        was.standing.acceptable
        and now.standing.acceptable
        and any(cell.known is not None and cell.known.intermittent for cell in (was, now))
    )


def _changed(was: CellRecord, now: CellRecord) -> bool:
    if (was.verdict, was.stage) != (now.verdict, now.stage):
        return True
    # Files of earlier versions do not name the anomaly.
    return None not in (was.anomaly, now.anomaly) and was.anomaly != now.anomaly


def _words(cell: CellRecord | None) -> str:
    if cell is None:
        return ""
    stage = f" at {cell.stage}" if cell.stage else ""
    anomaly = f" ({cell.anomaly})" if cell.anomaly else ""
    return f"{cell.verdict}{stage}{anomaly}"


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
