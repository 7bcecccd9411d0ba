"""The reported conclusion from one or several runs of a cell: the same failure again, or a flake."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..expectations.entries import Expectations
from ..oracle.repetition import Repetition
from ..oracle.verdicts import Outcome, Verdict
from ..reports.table import Seen
from ..spec.depths import Depth
from .cell_runner import CellRunner
from .tasks import Task

ENOUGH = 3
"""So many cells that fail twice in one way establish it: further ones do not run again, which takes seconds each."""


@dataclass(frozen=True)
class Conclusion:
    outcome: Outcome
    attempts: int = 1
    preceding_cells: tuple[str, ...] = ()
    """For a flake: the cells that ran before it in the process in which it failed."""
    repetition: Repetition | None = None
    """What several runs have shown, if several were asked for."""

    def as_json(self) -> dict[str, Any]:
        repeated = self.repetition.as_json() if self.repetition else None
        return {
            "outcome": self.outcome.as_json(),
            "attempts": self.attempts,
            "preceding_cells": self.preceding_cells,
            "repeated": repeated,
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Conclusion:
        repetition = Repetition.from_json(data["repeated"]) if data["repeated"] else None
        return Conclusion(
            Outcome.from_json(data["outcome"]), data["attempts"], tuple(data["preceding_cells"]), repetition
        )


def run_with_second_chance(task: Task, runner: CellRunner, expectations: Expectations) -> Conclusion:
    """Run a cell. If the outcome is unexpected, run it alone, and if that is good, again after the cells before it."""
    first, preceding = runner.run(task)
    # Where nothing runs, only a crash or a hang may come by chance.
    broken = first.verdict in (Verdict.CRASH, Verdict.HANG)
    by_chance = task.topology.depth is Depth.RUN or broken
    if expectations.status(task.id, first).acceptable or not by_chance:
        return Conclusion(first)
    way = _way(task, first)
    established = runner.failed_twice[way] >= (1 if first.cause else ENOUGH) and way not in runner.by_chance
    # The words of a crash or a hang are those of all, and the cells before it in its process may be the cause.
    if established and not (broken and preceding):
        return Conclusion(first)
    alone = runner.run_alone(task)
    if not expectations.status(task.id, alone).acceptable:
        runner.failed_twice[way] += first.verdict is not Verdict.PASS and way == _way(task, alone)
        return Conclusion(alone, attempts=2)
    runner.by_chance.add(way)
    ids = tuple(predecessor.id for predecessor in preceding)
    if not preceding:
        return Conclusion(_flake(first, f"{first.label} at first, {alone.label} the second time"), 2)
    again = runner.run_alone(task, after=preceding)
    how = "by chance" if expectations.status(task.id, again).acceptable else "whenever these run before it"
    words = f"{first.label} after other cells, {alone.label} alone, {again.label} after them again: {how}"
    return Conclusion(_flake(first, words), 3, ids)


def _way(task: Task, outcome: Outcome) -> tuple[str, ...]:
    """What failures of one cause have in common; the platform names the cause of a refusal itself."""
    # Numbers, and what stands in brackets, differ from cell to cell.
    error = re.sub(r"\(.*?\)|\d+", "", Seen.of(outcome.words, outcome.reason).witness)
    return (outcome.cause,) if outcome.cause else (task.implementation, outcome.words, error)


def run_repeatedly(task: Task, runner: CellRunner, expectations: Expectations, times: int) -> Conclusion:
    """Run a cell several times in one process, and in another one after a crash or a hang.

    An isolated cell has a process for each run.
    """
    return conclude_repeated(task.id, [runner.run(task)[0] for _ in range(times)], expectations)


def conclude_repeated(cell_id: str, outcomes: Sequence[Outcome], expectations: Expectations) -> Conclusion:
    """The outcome that stands for all runs: a failure if there is one, the least expected first.

    A cell that passes and fails is a flake, unless its entry says that it may.
    """
    repetition = Repetition.of(outcomes)
    failures = [outcome for outcome in outcomes if outcome.verdict is not Verdict.PASS]
    seconds = sum(outcome.seconds for outcome in outcomes)
    if not failures:
        return Conclusion(replace(outcomes[0], seconds=seconds), repetition=repetition)
    # An error of the suite shows nothing about the rate.
    broken = [outcome for outcome in failures if outcome.verdict is Verdict.HARNESS_ERROR]
    wrong = [outcome for outcome in failures if not expectations.status(cell_id, outcome).acceptable]
    chosen = (broken or wrong or failures)[0]
    if len(repetition.ways) > 1:
        words = f"{repetition.words} ({repetition.ways_in_words}): {chosen.reason}"
        chosen = replace(chosen, reason=words)
    entry = expectations.of(cell_id)
    if len(failures) < len(outcomes) and not broken and not (entry and entry.intermittent):
        chosen = replace(chosen, verdict=Verdict.FLAKE, signal=None)
    return Conclusion(replace(chosen, seconds=seconds), repetition=repetition)


def _flake(first: Outcome, words: str) -> Outcome:
    return replace(first, verdict=Verdict.FLAKE, reason=f"{words}: {first.reason}")
