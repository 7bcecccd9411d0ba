"""Judges the results in a bundle again, from their outcomes, the known failures and the journal.

What the results themselves say about the status of cells, claims and the exit code is compared, and not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..expectations.entries import ExpectationError, Expectations, read_entries
from ..oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from ..reports.journal import lines_in
from ..reports.provenance import plan_digest
from ..reports.results import UNREADABLE, RunRecord, UnreadableResultsError, check_schema, record_of
from ..spec.capabilities import shown_by
from ..spec.depths import Depth
from .archive import JOURNAL, RESULTS, BadBundleError, Bundle

_BADNESS = {0: 0, 3: 0, 4: 0, 1: 1, 2: 2}
"""3 and 4 say as much as 0, of a run in which nothing ran, because there was nothing on which to run."""


@dataclass(frozen=True)
class JudgedRun:
    """One run of a bundle, judged again."""

    record: RunRecord
    """Its cells have the status that they were found to have."""
    known: Mapping[str, str]
    """The reason and the link of each known failure, by its cell."""
    made: Mapping[str, Any]
    """How the run was made, as `Provenance` has it."""
    exit_code: int
    stored_exit_code: int
    journal: bool
    """Whether the bundle has the journal of the run, so that passes could be looked up."""

    @property
    def plan(self) -> tuple[str, ...] | None:
        """All cells of the plan, also those that did not run; None if the cells were named one by one."""
        plan, ran = self.made["plan"], (cell.id for cell in self.record.cells)
        # Of merged results, the plan is that of one shard, which did not select the cells of the others.
        return tuple(dict.fromkeys((*ran, *plan["unselected"], *plan["lacking"]))) if plan else None


def judged(bundle: Bundle) -> tuple[JudgedRun, ...]:
    """The runs of a bundle, one for each platform; raises `BadBundleError` if one contradicts itself."""
    names = sorted(name for name in bundle.members if name.startswith(RESULTS.partition("{")[0]))
    if not names:
        raise BadBundleError("the archive holds no results, conformance-PLATFORM.json")
    runs = []
    for name in names:
        try:
            runs.append(_judged(bundle, name))
        except (UnreadableResultsError, ExpectationError) as error:
            raise BadBundleError(str(error)) from error
        except UNREADABLE as error:
            raise BadBundleError(f"{name} is no result of a run: {type(error).__name__}: {error}") from error
    known = {name.format(run.record.name) for run in runs for name in (RESULTS, JOURNAL)}
    for name in sorted({*bundle.members} - known):
        raise BadBundleError(f"{name} belongs to no result in the bundle")
    return tuple(runs)


def _judged(bundle: Bundle, name: str) -> JudgedRun:
    results = json.loads(bundle.members[name])
    check_schema(name, results)
    record = record_of(results)
    if name != RESULTS.format(record.name):
        raise BadBundleError(f"{name} holds the results of {record.name}")
    made, seen, known = results["run"], set[str](), dict[str, str]()
    # The known failures that the run used.
    entries = read_entries(made["expectations"]["text"] if made["expectations"] else "", "the run's known failures")
    expectations = Expectations(entries).applicable(made["packages"]["jax"]).at(Depth(record.depth))
    journal = bundle.members.get(JOURNAL.format(record.name))
    events = lines_in((journal or b"").decode(errors="replace"), "event")
    ends = (event for event in events if event["event"] in ("end", "concluded"))
    passed = {end["cell"] for end in ends if end["outcome"]["verdict"] == Verdict.PASS.value}
    for cell, data in zip(record.cells, results["cells"], strict=True):
        if shown_by(cell.id) is None:
            raise ValueError(f"{cell.id!r} is no id of a cell: expected implementation/callback/program/topology")
        if cell.id in seen:
            raise BadBundleError(f"{name} has the cell {cell.id} twice")
        seen.add(cell.id)
        verdict, stage = Verdict(cell.verdict.partition("(")[0]), Stage(cell.stage) if cell.stage else None
        outcome = Outcome(verdict, stage, signal=data["signal"])
        if outcome.label != cell.verdict:
            raise ValueError(f"{cell.id} has the verdict {cell.verdict}, and the signal {data['signal']}")
        status, entry = expectations.status(cell.id, outcome), expectations.of(cell.id)
        # `merge` cannot say which failure was expected of a cell whose shard is missing.
        if cell.status is not status and (verdict is not Verdict.MISSING or cell.status.acceptable):
            raise BadBundleError(
                f"{name}: {cell.id} is stored as {cell.status.value}, and judged again it is {status.value}"
            )
        if cell.passed and journal is not None and cell.id not in passed:
            raise BadBundleError(f"{name}: {cell.id} is stored as a pass, and its journal has none of it")
        if entry and status is ExpectationStatus.KNOWN_FAILURE:
            known[cell.id] = f"{' '.join(entry.reason.split())} {entry.link}"
    code = record.exit_code
    # A worse code may have a reason that this version does not know; a better one has none.
    if _BADNESS[results["exit_code"]] < _BADNESS[code]:
        raise BadBundleError(f"{name}: the exit code is stored as {results['exit_code']}, and it is {code}")
    run = JudgedRun(record, known, made, code, results["exit_code"], journal is not None)
    if run.plan is not None and plan_digest(run.plan) != made["plan"]["digest"]:
        raise BadBundleError(f"{name}: its cells are not those of its plan: some were added or left out later")
    return run
