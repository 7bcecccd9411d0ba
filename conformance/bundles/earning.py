"""The profiles that a judged run earns, for each implementation and each depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..oracle.verdicts import ExpectationStatus, Verdict
from ..reports.table import several
from ..spec.capabilities import PROFILES, Shown, profiles_of, shown_by
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
    """Why it is not earned, the most telling reason first."""

    @property
    def earned(self) -> bool:
        return not self.reasons

    @property
    def words(self) -> str:
        if not self.earned:
            return f"not earned: {self.reasons[0]}"
        known, left_out = len(self.known_failures), len(self.left_out)
        notes = f", with {several(known, 'known failure')} of cases" * bool(known)
        notes += f", {several(left_out, 'cell')} left out" * bool(left_out)
        return f"earned: {self.passed} of {self.cells} cells pass{notes}"


def claims(run: JudgedRun) -> Iterator[Claim]:
    """All profiles of which the run's plan has cells; of the cells that ran, if the run had no plan."""
    groups: dict[tuple[str, str], dict[str, Shown]] = {}
    for cell_id in run.plan or [cell.id for cell in run.record.cells]:
        if shown := shown_by(cell_id):
            groups.setdefault((shown.implementation, shown.depth.value), {})[cell_id] = shown
    cells, lacking = {cell.id: cell for cell in run.record.cells}, run.made["plan"]["lacking"] if run.plan else {}
    for where, planned in groups.items():
        for profile in PROFILES:
            own = [cell_id for cell_id, shown in planned.items() if profile in profiles_of(shown)]
            wanted = [one for one in own if one not in lacking]
            passed = sum(one in cells and cells[one].passed for one in wanted)
            # A case is a callback that misbehaves, and some runtimes cannot survive it. A program has no such excuse.
            known = {one: run.known[one] for one in wanted if planned[one].case and one in run.known}
            left_out = {one: lacking[one] for one in own if one in lacking}
            none = ("the plan has no cell of this profile",)
            reasons = tuple(_reasons(run, wanted, known, left_out)) if own else none
            yield Claim(run.record.platform, profile, *where, len(wanted), passed, known, left_out, reasons)


def _reasons(run: JudgedRun, wanted: list[str], known: Mapping[str, str], left_out: Mapping[str, str]) -> Iterator[str]:
    if run.plan is None:
        yield NAMED
    counted = {one for one in wanted if one not in known}
    ran = [one for one in run.record.cells if one.id in counted and one.verdict != Verdict.MISSING.value]
    bad = [cell for cell in ran if cell.status is not ExpectationStatus.AS_EXPECTED]
    missing = counted - {cell.id for cell in ran}
    for first in sorted(bad, key=lambda cell: cell.status.acceptable)[:1]:
        fail = "fails" if len(bad) == 1 else "fail"
        some = f"; {len(missing)} did not run" if missing else ""
        yield f"{len(bad)} of the {len(ran)} cells that ran {fail}, the first is {first.id}: {first.words}{some}"
    for name in [one for one in wanted if one in missing][:1]:
        yield f"{len(missing)} of its {len(counted)} cells did not run, the first is {name}"
    there = {one.split("/")[1] for one in wanted}
    for callback, reason in {one.split("/")[1]: why for one, why in reversed([*left_out.items()])}.items():
        if callback not in there:
            yield f"all cells of {callback} were left out: {reason}"
    # A refusal with an error is right where a platform lacks something, and shows no support of it.
    through = {cell.callback for cell in ran if cell.shown != "refused"}
    for callback in dict.fromkeys(cell.callback for cell in ran if cell.callback not in through):
        yield f"all programs with {callback} were refused"
    for problem in run.record.problems[:1]:
        yield f"the run had {several(len(run.record.problems), 'problem')}, the first is: {problem}"
    if len(bad) == len(ran):
        yield "no cell of it passed"
