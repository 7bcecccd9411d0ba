"""A sample of a campaign that takes minutes: killed mutants, each with the cell or test that killed it.

`ci/mutation/kills.json` has the kills of the campaigns. A mutant of a line that has changed since is not there any
more, and others are drawn. If the killer of a mutant does not kill it any more, those of the other mutants of its
module are tried.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from conformance.oracle.verdicts import Verdict

from .forks import in_forks, temporary_folder
from .mutant import Mutant
from .overlay import PROJECT, environment_with, make_overlay
from .pool import Test, exists, is_test, named
from .running import Runner
from .trial import KILLED, Job, Result, try_mutant

KILLS = PROJECT / "ci" / "mutation" / "kills.json"
COUNT = 30
SECOND_CHANCES = 12
BUDGET = 60.0
QUICK_SECONDS = 6.0
TEST_DEADLINE = 300.0


class KillsError(Exception):
    """Kills that cannot be used as they stand."""


def save(results: Iterable[Result], known: Collection[str], path: Path) -> None:
    """Add the kills of a campaign that take seconds, without those of locks, which need two threads at one moment.

    Those of earlier campaigns stay, as far as the source still has their mutants, which are `known`.
    """
    killed = [result for result in results if result.verdict == KILLED and result.kind != "drop lock"]
    kills = {result.id: result.killer for result in killed if result.seconds < QUICK_SECONDS * result.tried}
    kills = {name: killer for name, killer in load(path).items() if name in known} | kills
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kills, indent=0, sort_keys=True) + "\n")


def load(path: Path = KILLS) -> dict[str, str]:
    """The cell or test that killed, by the id of the mutant."""
    kills: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    for mutant, killer in kills.items():
        if is_test(killer) and not exists(killer):
            raise KillsError(f"{path}: {mutant!r} is killed by {killer}, and there is no such test: name another one")
    return kills


def drawn(mutants: Sequence[Mutant], kills: Collection[str], count: int, seed: int) -> list[Mutant]:
    """As many mutants that the source still has, the same ones for the same seed."""
    known = [mutant for mutant in mutants if mutant.id in kills]
    # By id: an edit of one module should not draw other mutants of all the others.
    known.sort(key=lambda mutant: random.Random(f"{seed} {mutant.id}").random())
    return known[:count]


def seconds_of(tests: Iterable[str], workers: int, log: Path) -> dict[str, float]:
    """What these tests take with the unchanged source. One that fails there would kill each mutant: KillsError."""
    seconds = {}
    for test, (why, taken) in in_forks(sorted(set(tests)), workers, lambda test: _try_unchanged(test, log)):
        if why:
            raise KillsError(f"{test} fails with the unchanged source, so it shows nothing about a mutant: {why}")
        seconds[test] = taken
    return seconds


def _try_unchanged(test: str, log: Path) -> tuple[str, float]:
    with temporary_folder() as folder:
        overlay = make_overlay(folder)
        os.environ.update(environment_with(overlay, os.environ))
        sys.path.insert(0, str(overlay))
        started = time.monotonic()
        with Runner(log) as runner:
            outcome = runner.run(Test(test), TEST_DEADLINE)
    why = "" if outcome.verdict is Verdict.PASS else f"{outcome.label}: {outcome.reason}"
    return why, time.monotonic() - started


def try_sample(mutants: Sequence[Mutant], kills: Mapping[str, str], workers: int, log: Path) -> Iterator[Result]:
    """Try each mutant with its killer. The tests among the killers run with the unchanged source before."""
    by_module: dict[str, dict[str, None]] = {}
    for name, killer in kills.items():
        by_module.setdefault(name.partition(":")[0], {})[killer] = None
    seconds = seconds_of([kills[mutant.id] for mutant in mutants if is_test(kills[mutant.id])], workers, log)

    def jobs() -> Iterator[Job]:
        for mutant in mutants:
            first = kills[mutant.id]
            # A test that has not run with the unchanged source is no second chance.
            others = [each for each in by_module[mutant.module] if not is_test(each) or each in seconds]
            others = [each for each in others if each != first][:SECOND_CHANCES]
            yield Job(mutant, tuple(named((first, *others)).values()), seconds, BUDGET)

    for _, reported in in_forks(jobs(), workers, lambda job: try_mutant(job, log).as_json()):
        yield Result.from_json(reported)
