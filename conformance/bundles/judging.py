"""Judges the results in a bundle again, from their outcomes, the known failures and the journal.

What the results themselves say about standings and the exit code is compared, and not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..expectations.entries import ExpectationError, Expectations, read_entries
from ..oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict
from ..reports.provenance import plan_digest
from ..reports.results import UNREADABLE, UnreadableResultsError, check_schema, name_of
from ..spec.capabilities import shown_by
from ..spec.depths import Depth
from .archive import BadBundleError, Bundle
from .making import ENVIRONMENT, environment_of, expectations_name, journal_name, results_name


@dataclass(frozen=True)
class JudgedCell:
    outcome: Outcome
    standing: ExpectationStatus
    witness: str
    reason: str
    """That of the known failure, with its link; empty for other cells."""
    refused: bool = False
    """Whether it passed without running, because the platform refuses its program in words."""


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
        return _name(self.results)

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
    names = [name for name in bundle.members if name.startswith("conformance-")]
    if not names:
        raise BadBundleError("the archive holds no results, conformance-PLATFORM.json")
    runs = []
    for name in sorted(names):
        try:
            runs.append(_judged(bundle, name, json.loads(bundle.members[name])))
        except UnreadableResultsError as error:
            raise BadBundleError(str(error)) from error
        except UNREADABLE as error:
            raise BadBundleError(f"{name} is no result of a run: {type(error).__name__}: {error}") from error
    try:
        _check_members(bundle, runs)
    except (ValueError, RecursionError) as error:
        raise BadBundleError(f"{ENVIRONMENT} is no JSON: {error}") from error
    return tuple(runs)


def _judged(bundle: Bundle, name: str, results: dict[str, Any]) -> JudgedRun:
    check_schema(name, results)
    platform = str(results["platform"])
    run_name = _name(results)
    if name != results_name(run_name):
        raise BadBundleError(f"{name} holds the results of {run_name}")
    if not results.get("run"):
        raise BadBundleError(f"{name} does not say how its run was made")
    expectations = _expectations(bundle, run_name, results)
    journal = _passed_in(bundle, run_name)
    cells: dict[str, JudgedCell] = {}
    for data in results["cells"]:
        cell_id = str(data["id"])
        if shown_by(cell_id) is None:
            raise ValueError(f"{cell_id!r} is no id of a cell: expected implementation/callback/program/topology")
        if cell_id in cells:
            raise BadBundleError(f"{name} has the cell {cell_id} twice")
        cells[cell_id] = found = _judged_cell(cell_id, data, expectations)
        # `merge` cannot say which failure was expected of a cell whose shard is missing.
        missing = found.outcome.verdict is Verdict.MISSING and not ExpectationStatus(data["standing"]).acceptable
        if data["standing"] != found.standing.value and not missing:
            raise BadBundleError(
                f"{name}: {cell_id} is stored as {data['standing']}, and judged again it is {found.standing.value}"
            )
        if found.outcome.verdict is Verdict.PASS and journal is not None and cell_id not in journal:
            raise BadBundleError(f"{name}: {cell_id} is stored as a pass, and {journal_name(run_name)} has none of it")
    run = JudgedRun(platform, results, cells, _exit_code(cells, results), journal is not None)
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
    standing, entry = expectations.standing(cell_id, outcome), expectations.of(cell_id)
    known = entry is not None and standing is ExpectationStatus.KNOWN_FAILURE
    reason = f"{' '.join(entry.reason.split())} {entry.link}" if known and entry else ""
    return JudgedCell(outcome, standing, str(data["witness"]), reason, data.get("shown") == "refused")


_BADNESS = {0: 0, 3: 0, 4: 0, 1: 1, 2: 2}
"""3 and 4 say as much as 0, of a run in which nothing ran, because there was nothing on which to run."""


def _exit_code(cells: Mapping[str, JudgedCell], results: Mapping[str, Any]) -> int:
    """0, 1 or 2; a shard has no cell if there are more shards than cells."""
    empty_shard = "shard" in results and not cells
    if not empty_shard and all(cell.outcome.verdict is Verdict.MISSING for cell in cells.values()):
        return 2
    return 1 if results["problems"] or any(not cell.standing.acceptable for cell in cells.values()) else 0


def _name(results: Mapping[str, Any]) -> str:
    return name_of(str(results["platform"]), str(results.get("depth", Depth.RUN.value)))


def _expectations(bundle: Bundle, run_name: str, results: Mapping[str, Any]) -> Expectations:
    """The known failures that the run used: the member and the results must have the same text."""
    run, depth = results["run"], Depth(results.get("depth", Depth.RUN.value))
    name, known = expectations_name(run_name), run["expectations"]
    text = bundle.members.get(name)
    if (None if known is None else known["text"].encode()) != text:
        raise BadBundleError(f"{name} is not the text of known failures that the run used")
    if text is None:
        return Expectations()
    try:
        return Expectations(read_entries(text.decode(), name)).applicable(run["packages"]["jax"]).at(depth)
    except ExpectationError as error:
        raise BadBundleError(str(error)) from error


def _passed_in(bundle: Bundle, run_name: str) -> set[str] | None:
    """The cells of which the journal has a pass; None without a journal, for example of merged results."""
    text = bundle.members.get(journal_name(run_name))
    if text is None:
        return None
    passed = set()
    for line in text.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            # A process may have been killed while it wrote the line.
            continue
        if event.get("event") in ("end", "concluded") and event["outcome"]["verdict"] == Verdict.PASS.value:
            passed.add(event["cell"])
    return passed


def _check_members(bundle: Bundle, runs: list[JudgedRun]) -> None:
    """Every member belongs to a run, and the environment is that of the results."""
    known = {ENVIRONMENT}
    for run in runs:
        known |= {name(run.name) for name in (results_name, journal_name, expectations_name)}
    for name in sorted({*bundle.members} - known):
        raise BadBundleError(f"{name} belongs to no result in the bundle")
    environment = {run.name: environment_of(run.results) for run in runs}
    if json.loads(bundle.members.get(ENVIRONMENT, b"null")) != environment:
        raise BadBundleError(f"{ENVIRONMENT} is not the environment that the results have")
