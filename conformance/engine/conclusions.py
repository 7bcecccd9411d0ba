"""The reported conclusion from one or several runs of a cell: the same failure again, or a flake."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..expectations.entries import Expectations
from ..oracle.verdicts import Outcome, Verdict
from .cell_runner import CellRunner
from .tasks import Task


@dataclass(frozen=True)
class Conclusion:
    outcome: Outcome
    attempts: int = 1
    company: tuple[str, ...] = ()
    """For a flake: the cells that ran before it in the process in which it failed."""

    def as_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.as_json(), "attempts": self.attempts, "company": self.company}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Conclusion:
        return Conclusion(Outcome.from_json(data["outcome"]), data["attempts"], tuple(data["company"]))


def run_once(task: Task, runner: CellRunner) -> Conclusion:
    outcome, _ = runner.run(task)
    return Conclusion(outcome)


def run_with_second_chance(task: Task, runner: CellRunner, expectations: Expectations) -> Conclusion:
    """Run a cell. Run it again alone if the outcome is unexpected, and then after its company if that run is good."""
    first, company = runner.run(task)
    if expectations.standing(task.id, first).acceptable:
        return Conclusion(first)
    alone = runner.run_alone(task)
    if not expectations.standing(task.id, alone).acceptable:
        return Conclusion(alone, attempts=2)
    ids = tuple(predecessor.id for predecessor in company)
    if not company:
        return Conclusion(_flake(first, f"{first.label} at first, {alone.label} the second time"), 2)
    again = runner.run_alone(task, after=company)
    how = "by chance" if expectations.standing(task.id, again).acceptable else "whenever these run before it"
    words = f"{first.label} in company, {alone.label} alone, {again.label} in company again: {how}"
    return Conclusion(_flake(first, words), 3, ids)


def _flake(first: Outcome, words: str) -> Outcome:
    return replace(first, verdict=Verdict.FLAKE, reason=f"{words}: {first.reason}")
