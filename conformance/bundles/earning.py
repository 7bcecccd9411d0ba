"""The profiles that a judged run earns, for each implementation and each depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..oracle.verdicts import ExpectationStatus, Verdict
from ..spec.capabilities import PROFILES, Shown, profiles_of, shown_by
from ..spec.depths import Depth
from .judging import JudgedRun

NAMED = "the run's cells were named one by one (--cell), so nothing says which cells there are"


@dataclass(frozen=True)
class Claim:
    """A profile of one implementation at one depth, and what the run says of it."""

    platform: str
    profile: str
    implementation: str
    depth: str
    cells: int
    """The number of cells that the plan has of it, without those that the release lacks."""
    passed: int
    known_failures: Mapping[str, str]
    """The known failures among the cases, with their reasons: they do not prevent it."""
    left_out: Mapping[str, str]
    """The cells that the release or the implementation lacks, with the reasons."""
    reasons: tuple[str, ...]
    """Why it is not earned."""

    @property
    def earned(self) -> bool:
        return not self.reasons

    @property
    def words(self) -> str:
        if not self.earned:
            return f"not earned: {self.reasons[0]}"
        notes = [f"{self.passed} of {self.cells} cells pass"]
        notes += [f"with {len(self.known_failures)} known failures of cases"] if self.known_failures else []
        notes += [f"{len(self.left_out)} cells left out"] if self.left_out else []
        return f"earned: {', '.join(notes)}"

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"earned": self.earned}


def claims(run: JudgedRun) -> tuple[Claim, ...]:
    """All profiles of which the run's plan has cells; of the cells that ran, if the run had no plan."""
    groups: dict[tuple[str, Depth], dict[str, Shown]] = {}
    for cell_id in run.plan or run.cells:
        if shown := shown_by(cell_id):
            groups.setdefault((shown.implementation, shown.depth), {})[cell_id] = shown
    return tuple(_claim(run, profile, own) for own in groups.values() for profile in PROFILES)


def _claim(run: JudgedRun, profile: str, planned: Mapping[str, Shown]) -> Claim:
    ids = [cell_id for cell_id, shown in planned.items() if profile in profiles_of(shown)]
    lacking: Mapping[str, str] = run.run["plan"]["lacking"] if run.plan else {}
    left_out = {one: lacking[one] for one in ids if one in lacking}
    wanted = [one for one in ids if one not in left_out]
    # A case is a callback that misbehaves, and some runtimes cannot survive it. A program has no such excuse.
    known = {
        one: run.cells[one].reason
        for one in wanted
        if planned[one].case and one in run.cells and run.cells[one].status is ExpectationStatus.KNOWN_FAILURE
    }
    passed = [one for one in wanted if one in run.cells and run.cells[one].outcome.verdict is Verdict.PASS]
    counted = [one for one in wanted if one not in known]
    lacks = {_callback(one): reason for one, reason in reversed(left_out.items())}
    lacks = {callback: reason for callback, reason in lacks.items() if callback not in map(_callback, wanted)}
    reasons = [*_reasons(run, counted, lacks)] if ids else ["the plan has no cell of it"]
    if ids and run.plan is None:
        reasons.insert(0, NAMED)
    first = next(iter(planned.values()))
    where = (run.platform, profile, first.implementation, first.depth.value)
    return Claim(*where, len(wanted), len(passed), known, left_out, tuple(reasons))


def _reasons(run: JudgedRun, wanted: Sequence[str], lacks: Mapping[str, str]) -> Iterator[str]:
    """Why these cells earn nothing, the most telling reason first; `lacks` has the callbacks that were left out."""
    ran = {one: run.cells[one] for one in wanted if one in run.cells}
    ran = {one: cell for one, cell in ran.items() if cell.outcome.verdict is not Verdict.MISSING}
    unexpected = {one: cell for one, cell in ran.items() if not cell.status.acceptable}
    known = {one: cell for one, cell in ran.items() if cell.status is ExpectationStatus.KNOWN_FAILURE}
    for cells, words in ((unexpected, "unexpected results"), (known, "known failures")):
        for first, cell in [*cells.items()][:1]:
            yield f"{len(cells)} {words}, the first is {first}: {cell.outcome.label}"
    if missing := [one for one in wanted if one not in ran]:
        yield f"{len(missing)} of its {len(wanted)} cells did not run, the first is {missing[0]}"
    yield from (f"all cells of {callback} were left out: {reason}" for callback, reason in lacks.items())
    # A refusal with an error is right where a platform lacks something, and shows no support of it.
    through = {_callback(one) for one, cell in ran.items() if not cell.refused}
    for callback in dict.fromkeys(_callback(one) for one in ran):
        if callback not in through:
            yield f"all programs with {callback} were refused"
    if run.problems:
        yield f"the run had {len(run.problems)} problems, the first is: {run.problems[0]}"
    if not any(cell.outcome.verdict is Verdict.PASS and cell.status.acceptable for cell in ran.values()):
        yield "no cell of it passed"


def _callback(cell_id: str) -> str:
    return cell_id.split("/")[1]
