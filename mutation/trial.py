"""The trial of one mutant: cells run until one notices it, or until the time for a mutant is over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from conformance.engine.tasks import Task
from conformance.oracle.verdicts import Outcome, Verdict

from . import checks
from .c import building
from .forks import temporary_folder
from .mutant import Mutant
from .order import about
from .overlay import environment_with, make_overlay
from .running import Cells

KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"

LEAST_DEADLINE = 15.0
"""Seconds for a cell: a loaded machine is no killer."""
TIMES = 10
"""A cell may take so many times as long as it did with the unchanged source."""


class Until(StrEnum):
    """The kill at which a trial ends."""

    FIRST = "first"
    ANOTHER = "another"
    """That of a second fault or program. Then no cell of the first is the only one that notices the mutant."""
    ALL = "all"
    """At none: all cells run."""


@dataclass(frozen=True)
class Job:
    mutant: Mutant
    tasks: tuple[Task, ...]
    """In the order in which they run."""
    seconds: Mapping[str, float]
    """What each cell took with the unchanged source."""
    budget: float
    """The seconds after which no further cell begins."""
    until: Until = Until.FIRST
    passed: tuple[str, ...] = ()
    """The cells that have not noticed the mutant in an earlier run of the campaign."""
    check: str = ""
    """A test that must notice it, because no cell can."""

    def __str__(self) -> str:
        return self.mutant.id


@dataclass(frozen=True)
class Result:
    """What came of a mutant: a line of the journal."""

    id: str
    module: str
    kind: str
    line: int
    diff: str
    verdict: str
    cell: str = ""
    """The first cell that killed it."""
    how: str = ""
    """The outcome of that cell, in a few words."""
    killers: tuple[str, ...] = ()
    """The cells and tests that killed it, where a trial went on after the first kill and its time was not over."""
    passed: tuple[str, ...] = ()
    """The cells that did not notice a mutant that survived: when the campaign goes on, the others run."""
    tried: int = 0
    reaching: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> Result:
        return Result(**{**line, "killers": tuple(line["killers"]), "passed": tuple(line["passed"])})


def try_mutant(job: Job, log: Path) -> Result:
    """In a fork: run the cells of a mutant."""
    started = time.monotonic()
    killers: dict[str, str] = {}
    passed = [*job.passed]
    in_time = True
    with temporary_folder() as folder:
        overlay = make_overlay(folder, job.mutant.module, job.mutant.source)
        if building.is_c(job.mutant.module):
            building.build_changed(overlay)
        os.environ.update(environment_with(overlay, os.environ))
        sys.path.insert(0, str(overlay))
        if job.check and (how := checks.failure(job.check)):
            killers[job.check] = how[:300]
        with Cells(log) as cells:
            for task in job.tasks:
                if has_ended(job.until, killers):
                    break
                if job.until is Until.ANOTHER and about(task.id) in map(about, killers):
                    continue
                if time.monotonic() - started > job.budget:
                    in_time = False
                    break
                outcome = _run(cells, task, job.seconds.get(task.id, 1.0))
                if outcome.verdict is Verdict.PASS:
                    passed.append(task.id)
                    continue
                killers[task.id] = _words(outcome)
    result = replace(untried(job.mutant), seconds=round(time.monotonic() - started, 2))
    result = replace(result, tried=len(passed) + len(killers), reaching=len(job.tasks) + len(job.passed))
    if not killers:
        return replace(result, verdict=SURVIVED, passed=tuple(passed))
    cell, how = next(iter(killers.items()))
    known = in_time and job.until is not Until.FIRST
    return replace(result, verdict=KILLED, cell=cell, how=how, killers=tuple(killers) if known else ())


def has_ended(until: Until, killers: Collection[str]) -> bool:
    """Whether no further cell needs to run. A test that notices the mutant is enough: no cell is the only one then."""
    if until is Until.ANOTHER:
        return len(killers) > 1 or any(map(checks.is_test, killers))
    return until is Until.FIRST and bool(killers)


def untried(mutant: Mutant) -> Result:
    """The result of a mutant for which there is no cell, or that needs none."""
    return Result(mutant.id, mutant.module, mutant.kind, mutant.line, mutant.diff, UNREACHED)


def _run(cells: Cells, task: Task, usual: float) -> Outcome:
    deadline = max(LEAST_DEADLINE, TIMES * usual)
    outcome = cells.run(task, deadline)
    if outcome.verdict is Verdict.HANG:
        # Once more, with twice the time: the machine may have been busy.
        outcome = cells.run(task, 2 * deadline)
    return outcome


def _words(outcome: Outcome) -> str:
    where = f" at {outcome.stage.value}" if outcome.stage else ""
    return " ".join(f"{outcome.label}{where}: {outcome.reason}".split())[:300]
