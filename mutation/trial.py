"""The trial of one mutant: cells and tests run until one notices it, or until the time for a mutant is over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from conformance.oracle.verdicts import Outcome, Verdict

from .c import building
from .forks import temporary_folder
from .mutant import Mutant
from .order import about
from .overlay import environment_with, make_overlay
from .pool import Check, Test, is_test
from .running import Runner

KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"

LEAST_DEADLINE = 15.0
"""Seconds for a cell or a test: a loaded machine is no killer."""
TIMES = 10
"""Each may take so many times as long as it did with the unchanged source."""
UNKNOWN_SECONDS = {False: 1.0, True: 12.0}
"""What a cell, and what a test, is taken to need where no record says it."""


class Until(StrEnum):
    """The kill at which a trial ends."""

    FIRST = "first"
    ANOTHER = "another"
    """That of a second case or program, or of a test. Then no cell of the first is the only one that notices it."""
    ALL = "all"
    """At none: all cells and tests run."""


@dataclass(frozen=True)
class Job:
    mutant: Mutant
    checks: tuple[Check, ...]
    """In the order in which they run."""
    seconds: Mapping[str, float]
    """What each took with the unchanged source."""
    budget: float
    """The seconds after which no further one begins."""
    until: Until = Until.FIRST
    passed: tuple[str, ...] = ()
    """Those that have not noticed the mutant in an earlier run of the campaign."""

    def __str__(self) -> str:
        return self.mutant.id


@dataclass(frozen=True)
class Result:
    """The result for a mutant: a line of the journal."""

    id: str
    module: str
    kind: str
    line: int
    diff: str
    verdict: str
    killer: str = ""
    """The first cell or test that killed it."""
    how: str = ""
    """Its outcome, in a few words."""
    killers: tuple[str, ...] = ()
    """The cells and tests that killed it, where a trial went on after the first kill and its time was not over."""
    passed: tuple[str, ...] = ()
    """Those that did not notice a mutant that survived: when the campaign goes on, the others run."""
    tried: int = 0
    reaching: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> Result:
        return Result(**{**line, "killers": tuple(line["killers"]), "passed": tuple(line["passed"])})


def try_mutant(job: Job, log: Path) -> Result:
    """In a fork: run the cells and tests of a mutant."""
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
        with Runner(log) as runner:
            for check in job.checks:
                if has_ended(job.until, killers):
                    break
                if job.until is Until.ANOTHER and about(check.id) in map(about, killers):
                    continue
                if time.monotonic() - started > job.budget:
                    in_time = False
                    break
                outcome = _run(runner, check, job.seconds.get(check.id, UNKNOWN_SECONDS[is_test(check.id)]))
                if outcome.verdict is Verdict.PASS:
                    passed.append(check.id)
                    continue
                killers[check.id] = _words(outcome)
    result = replace(untried(job.mutant), seconds=round(time.monotonic() - started, 2))
    result = replace(result, tried=len(passed) + len(killers), reaching=len(job.checks) + len(job.passed))
    if not killers:
        return replace(result, verdict=SURVIVED, passed=tuple(passed))
    killer, how = next(iter(killers.items()))
    known = in_time and job.until is not Until.FIRST
    return replace(result, verdict=KILLED, killer=killer, how=how, killers=tuple(killers) if known else ())


def has_ended(until: Until, killers: Collection[str]) -> bool:
    """Whether nothing further needs to run. A test that notices the mutant is enough: no cell is the only one then."""
    if until is Until.ANOTHER:
        return len(killers) > 1 or any(map(is_test, killers))
    return until is Until.FIRST and bool(killers)


def untried(mutant: Mutant) -> Result:
    """The result of a mutant for which there is no cell or test, or that needs none."""
    return Result(mutant.id, mutant.module, mutant.kind, mutant.line, mutant.diff, UNREACHED)


def _run(runner: Runner, check: Check, usual: float) -> Outcome:
    deadline = max(LEAST_DEADLINE, TIMES * usual)
    outcome = runner.run(check, deadline)
    if outcome.verdict is Verdict.HANG or (isinstance(check, Test) and outcome.verdict is not Verdict.PASS):
        # Once more, with twice the time: the machine may have been busy. And in a new process: what a mutant has left
        # there in an earlier test may be why this one fails, and then it would not fail alone.
        runner.end()
        outcome = runner.run(check, 2 * deadline)
    if isinstance(check, Test) and outcome.verdict is Verdict.HARNESS_ERROR:
        # A test that there is not would kill every mutant.
        raise LookupError(outcome.reason)
    return outcome


def _words(outcome: Outcome) -> str:
    where = f" at {outcome.stage.value}" if outcome.stage else ""
    return " ".join(f"{outcome.label}{where}: {outcome.reason}".split())[:300]
