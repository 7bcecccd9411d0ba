"""A whole run: plan, execution, second chances, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.cells import Cell, Plan
from conformance.expectations import Expectations
from conformance.processes import WorkerStartError
from conformance.progress import Progress
from conformance.report import Report
from conformance.supervisor import Finished, Journal, Supervisor
from conformance.verdicts import Outcome, Standing, Verdict

MAXIMUM_RERUNS = 60
"""Beyond this many unexpected results something general is wrong, and running each alone would take
longer than the run itself; the rest are reported from their first run."""


@dataclass(frozen=True)
class Options:
    platform: str
    results: Path
    workers: int
    deadline: float


def run(
    plan: Plan,
    selection: Plan,
    expectations: Expectations,
    options: Options,
    jax_version: str,
) -> Report:
    """Run the cells of `selection`, a part of the plan or cells beside it, and write the report."""
    cells = selection.cells
    options.results.mkdir(parents=True, exist_ok=True)
    report = Report(options.platform, expectations.applicable(jax_version))
    report.ineligible = selection.ineligible
    planned = [cell.id for cell in (*plan.cells, *cells)]
    report.problems += [
        f"the expectation {pattern!r} matches no planned cell" for pattern in expectations.unmatched(planned)
    ]
    started = time.monotonic()
    if cells:
        _execute(cells, report, options)
    report.seconds = time.monotonic() - started
    report.write(options.results / f"conformance-{options.platform}.json")
    return report


def _execute(cells: Sequence[Cell], report: Report, options: Options) -> None:
    for old in options.results.glob("worker-*.log"):
        old.unlink()
    journal = Journal(options.results / f"journal-{options.platform}.jsonl")
    workers = min(options.workers, len(cells))
    supervisor = Supervisor(options.results, journal, options.deadline, workers)
    first: dict[str, Finished] = {}
    second: dict[str, Finished] = {}
    progress = Progress(len(cells))

    def first_time(finished: Finished) -> None:
        first[finished.cell.id] = finished
        standing = report.expectations.standing(finished.cell.id, finished.outcome)
        progress.advance(finished.cell.id, standing.acceptable)

    def second_time(finished: Finished) -> None:
        second[finished.cell.id] = finished

    try:
        supervisor.run(cells, alone=False, report=first_time)
        doubtful = [f.cell for f in first.values() if _deserves_second_chance(f, report)]
        doubtful = doubtful[:MAXIMUM_RERUNS]
        progress.finish(len(doubtful))
        supervisor.run(doubtful, alone=True, report=second_time)
    except WorkerStartError as error:
        # What has run so far counts; the rest is reported as missing.
        report.problems.append(str(error))
    finally:
        journal.close()

    for cell in cells:
        _conclude(cell, first.get(cell.id), second.get(cell.id), report)
    report.run_info = supervisor.run_info
    report.problems += supervisor.exit_problems


def _deserves_second_chance(finished: Finished, report: Report) -> bool:
    standing = report.expectations.standing(finished.cell.id, finished.outcome)
    return standing in (Standing.UNEXPECTED, Standing.CHANGED_FAILURE)


def _conclude(cell: Cell, first: Finished | None, second: Finished | None, report: Report) -> None:
    """One or two runs of a cell become its result: the same trouble twice, or a flake."""
    if first is None:
        report.add(cell, Outcome(Verdict.MISSING, reason="planned and never run"), attempts=0)
    elif second is None:
        report.add(cell, first.outcome)
    elif report.expectations.standing(cell.id, second.outcome).acceptable:
        outcome, alone = first.outcome, second.outcome.label
        reason = f"{outcome.label} in company, {alone} alone: {outcome.reason}"
        flake = replace(outcome, verdict=Verdict.FLAKE, reason=reason)
        report.add(cell, flake, attempts=2, company=first.company)
    else:
        report.add(cell, second.outcome, attempts=2)
