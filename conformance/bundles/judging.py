"""Judges the results in a bundle again, from their outcomes, the known failures and the journal.

What the results themselves say about statuses and the exit code is compared, and not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..expectations.entries import ExpectationError, Expectations, read_entries
from ..oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from ..reports.exit_codes import exit_code
from ..reports.files import events_in
from ..reports.provenance import plan_digest
from ..reports.results import UNREADABLE, UnreadableResultsError, check_schema, name_of
from ..spec.capabilities import shown_by
from ..spec.depths import Depth
from .archive import BadBundleError, Bundle, journal_name, results_name


@dataclass(frozen=True)
class JudgedCell:
    outcome: Outcome
    status: ExpectationStatus
    reason: str
    """That of the known failure, with its link; empty for other cells."""
    refused: bool
    """Whether it passed without running, because the platform refuses its program with an error."""


@dataclass(frozen=True)
class JudgedRun:
    """One run of a bundle, judged again."""

    platform: str
    results: Mapping[str, Any]
    cells: Mapping[str, JudgedCell]
    exit_code: int
    journal: bool
    """Whether the bundle has the journal of the run, so that passes could be looked up."""

    @property
    def name(self) -> str:
        """As in the names of its files: the platform, and the depth if nothing ran."""
        return name_of(self.platform, self.results["depth"])

    @property
    def run(self) -> Mapping[str, Any]:
        of_run: Mapping[str, Any] = self.results["run"]
        return of_run

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problem in self.results["problems"]]

    @property
    def plan(self) -> tuple[str, ...] | None:
        """All cells of the plan, also those that did not run; None if the cells were named one by one."""
        plan = self.run["plan"]
        # Of merged results, the plan is that of one shard, which did not select the cells of the others.
        return tuple(dict.fromkeys((*self.cells, *plan["unselected"], *plan["lacking"]))) if plan else None


def judged(bundle: Bundle) -> tuple[JudgedRun, ...]:
    """The runs of a bundle, one for each platform; raises `BadBundleError` if one contradicts itself."""
    names = sorted(name for name in bundle.members if name.startswith("conformance-"))
    if not names:
        raise BadBundleError("the archive holds no results, conformance-PLATFORM.json")
    runs = []
    for name in names:
        try:
            runs.append(_judged(bundle, name, json.loads(bundle.members[name])))
        except (UnreadableResultsError, ExpectationError) as error:
            raise BadBundleError(str(error)) from error
        except UNREADABLE as error:
            raise BadBundleError(f"{name} is no result of a run: {type(error).__name__}: {error}") from error
    known = {name(run.name) for run in runs for name in (results_name, journal_name)}
    for name in sorted({*bundle.members} - known):
        raise BadBundleError(f"{name} belongs to no result in the bundle")
    return tuple(runs)


def _judged(bundle: Bundle, name: str, results: dict[str, Any]) -> JudgedRun:
    check_schema(name, results)
    platform = str(results["platform"])
    run_name = name_of(platform, str(results["depth"]))
    if name != results_name(run_name):
        raise BadBundleError(f"{name} holds the results of {run_name}")
    expectations = _expectations(results)
    passed = _passed_in(bundle, run_name)
    cells: dict[str, JudgedCell] = {}
    for data in results["cells"]:
        cell_id = str(data["id"])
        if shown_by(cell_id) is None:
            raise ValueError(f"{cell_id!r} is no id of a cell: expected implementation/callback/program/topology")
        if cell_id in cells:
            raise BadBundleError(f"{name} has the cell {cell_id} twice")
        cells[cell_id] = found = _judged_cell(cell_id, data, expectations)
        # `merge` cannot say which failure was expected of a cell whose shard is missing.
        missing = found.outcome.verdict is Verdict.MISSING and not ExpectationStatus(data["status"]).acceptable
        if data["status"] != found.status.value and not missing:
            raise BadBundleError(
                f"{name}: {cell_id} is stored as {data['status']}, and judged again it is {found.status.value}"
            )
        if found.outcome.verdict is Verdict.PASS and passed is not None and cell_id not in passed:
            raise BadBundleError(f"{name}: {cell_id} is stored as a pass, and {journal_name(run_name)} has none of it")
    code = exit_code(
        [(cell.outcome.label, cell.status) for cell in cells.values()],
        problem=bool(results["problems"]),
        empty_shard="shard" in results and not cells,
    )
    run = JudgedRun(platform, results, cells, code, passed is not None)
    # A worse code may have a reason that this version does not know; a better one has none.
    if _BADNESS[results["exit_code"]] < _BADNESS[run.exit_code]:
        raise BadBundleError(f"{name}: the exit code is stored as {results['exit_code']}, and it is {run.exit_code}")
    if run.plan is not None and plan_digest(run.plan) != run.run["plan"]["digest"]:
        raise BadBundleError(f"{name}: its cells are not those of its plan: some were added or left out later")
    return run


def _judged_cell(cell_id: str, data: Mapping[str, Any], expectations: Expectations) -> JudgedCell:
    stage = Stage(data["stage"]) if data["stage"] else None
    outcome = Outcome(Verdict(data["verdict"].partition("(")[0]), stage, signal=data["signal"])
    if outcome.label != data["verdict"]:
        raise ValueError(f"{cell_id} has the verdict {data['verdict']}, and the signal {data['signal']}")
    status, entry = expectations.status(cell_id, outcome), expectations.of(cell_id)
    known = entry is not None and status is ExpectationStatus.KNOWN_FAILURE
    reason = f"{' '.join(entry.reason.split())} {entry.link}" if known and entry else ""
    return JudgedCell(outcome, status, reason, data.get("shown") == "refused")


_BADNESS = {0: 0, 3: 0, 4: 0, 1: 1, 2: 2}
"""3 and 4 say as much as 0, of a run in which nothing ran, because there was nothing on which to run."""


def _expectations(results: Mapping[str, Any]) -> Expectations:
    """The known failures that the run used."""
    run = results["run"]
    if run["expectations"] is None:
        return Expectations()
    entries = read_entries(run["expectations"]["text"], "the known failures of the run")
    return Expectations(entries).applicable(run["packages"]["jax"]).at(Depth(results["depth"]))


def _passed_in(bundle: Bundle, run_name: str) -> set[str] | None:
    """The cells of which the journal has a pass; None without a journal, for example of merged results."""
    text = bundle.members.get(journal_name(run_name))
    if text is None:
        return None
    ends = [one for one in events_in(text.decode(errors="replace")) if one["event"] in ("end", "concluded")]
    return {end["cell"] for end in ends if end["outcome"]["verdict"] == Verdict.PASS.value}
