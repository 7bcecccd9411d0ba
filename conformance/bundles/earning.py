"""The profiles that a judged run earns, for each implementation and each depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..oracle.verdicts import Standing, Verdict
from ..spec.depths import Depth
from ..spec.profiles import PROFILES, depth_of, implementation_of, is_fault, profiles_of
from .judging import JudgedRun

NAMED = "the run's cells were named one by one (--cell or --plan), so nothing says which cells there are"


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
    known: Mapping[str, str]
    """The known failures among the faults, with their reasons: they do not prevent it."""
    lacking: Mapping[str, str]
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
        notes += [f"with {len(self.known)} known failures of faults"] if self.known else []
        notes += [f"{len(self.lacking)} cells left out"] if self.lacking else []
        return f"earned: {', '.join(notes)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "platform": self.platform,
            "profile": self.profile,
            "implementation": self.implementation,
            "depth": self.depth,
            "earned": self.earned,
            "cells": self.cells,
            "passed": self.passed,
            "known_failures": dict(self.known),
            "left_out": dict(self.lacking),
            "reasons": list(self.reasons),
        }


def claims(run: JudgedRun) -> tuple[Claim, ...]:
    """All profiles of which the run's plan has cells; none if the run had no plan."""
    planned = run.plan or tuple(run.cells)
    groups: dict[tuple[str, Depth], list[str]] = {}
    for cell_id in planned:
        groups.setdefault((implementation_of(cell_id), depth_of(cell_id)), []).append(cell_id)
    return tuple(
        _claim(run, profile, implementation, depth, own)
        for (implementation, depth), own in groups.items()
        for profile in PROFILES
    )


def _claim(run: JudgedRun, profile: str, implementation: str, depth: Depth, planned: Sequence[str]) -> Claim:
    ids = [cell_id for cell_id in planned if profile in profiles_of(cell_id)]
    lacks: Mapping[str, str] = run.run["plan"]["lacking"] if run.plan else {}
    wanted = [cell_id for cell_id in ids if cell_id not in lacks]
    passed = [one for one in wanted if one in run.cells and run.cells[one].outcome.verdict is Verdict.PASS]
    # A fault is a callback that misbehaves, and some runtimes cannot survive it. A program has no such excuse.
    known = [one for one in wanted if is_fault(one) and _standing(run, one) is Standing.KNOWN_FAILURE]
    return Claim(
        run.platform,
        profile,
        implementation,
        depth.value,
        len(wanted),
        len(passed),
        {one: run.cells[one].reason for one in known},
        {cell_id: lacks[cell_id] for cell_id in ids if cell_id in lacks},
        tuple(_reasons(run, ids, lacks, {*known})),
    )


def _reasons(run: JudgedRun, ids: Sequence[str], lacks: Mapping[str, str], excused: set[str]) -> Iterator[str]:
    """Why the profile is not earned, the most telling reason first."""
    if not ids:
        yield "the plan has no cell of it"
        return
    if run.plan is None:
        yield NAMED
    wanted = [cell_id for cell_id in ids if cell_id not in lacks and cell_id not in excused]
    bad = {one: run.cells[one] for one in wanted if one in run.cells and not _passes(run, one)}
    failed = {one: cell for one, cell in bad.items() if cell.outcome.verdict is not Verdict.MISSING}
    unexpected = {one: cell for one, cell in failed.items() if not cell.standing.acceptable}
    known = {one: cell for one, cell in failed.items() if one not in unexpected}
    missing = [one for one in wanted if one not in run.cells or (one in bad and one not in failed)]
    for cells, words in ((unexpected, "unexpected results"), (known, "known failures")):
        if cells:
            first, cell = next(iter(cells.items()))
            yield f"{len(cells)} {words}, the first is {first}: {cell.outcome.label}"
    if missing:
        yield f"{len(missing)} of its {len(wanted)} cells did not run, the first is {missing[0]}"
    offered = {_callback(one) for one in ids if one not in lacks}
    for callback, cell_id in {_callback(one): one for one in reversed(ids) if one in lacks}.items():
        if callback not in offered:
            yield f"all cells of {callback} were left out: {lacks[cell_id]}"
    # A refusal in words is right where a platform lacks something, and shows no support of it.
    through = {_callback(one) for one in wanted if one in run.cells and not run.cells[one].refused}
    for callback in dict.fromkeys(_callback(one) for one in wanted if one in run.cells):
        if callback not in through:
            yield f"all programs with {callback} were refused"
    if run.problems:
        yield f"the run had {len(run.problems)} problems, the first is: {run.problems[0]}"
    if not any(one in run.cells and _passes(run, one) for one in wanted):
        yield "no cell of it passed"


def _callback(cell_id: str) -> str:
    return cell_id.split("/")[1]


def _passes(run: JudgedRun, cell_id: str) -> bool:
    cell = run.cells[cell_id]
    return cell.outcome.verdict is Verdict.PASS and cell.standing.acceptable


def _standing(run: JudgedRun, cell_id: str) -> Standing | None:
    return run.cells[cell_id].standing if cell_id in run.cells else None
