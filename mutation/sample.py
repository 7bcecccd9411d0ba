"""A sample of a campaign that takes minutes: killed mutants, each with the cell that killed it.

`ci/mutation/kills.json` has the kills of the last whole campaign. A mutant of a line that has changed since is
not there any more, and others are drawn. If the cell of a mutant does not kill it any more, those of the other mutants
of its module are tried.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .forks import in_forks
from .mutant import Mutant
from .overlay import PROJECT
from .pool import named
from .trial import KILLED, Job, Result, try_mutant

KILLS = PROJECT / "ci" / "mutation" / "kills.json"
COUNT = 30
SECOND_CHANCES = 12
BUDGET = 60.0
QUICK_SECONDS = 6.0


def save(results: Iterable[Result], path: Path) -> None:
    """Write the kills of a campaign that take seconds, without those of locks, which need two threads at one moment."""
    killed = [result for result in results if result.verdict == KILLED and result.kind != "drop lock"]
    # A test is no cell.
    killed = [result for result in killed if not result.cell.startswith("tests/")]
    quick = [result for result in killed if result.seconds < QUICK_SECONDS * result.tried]
    kills = {result.id: result.cell for result in sorted(quick, key=lambda result: result.id)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kills, indent=0) + "\n")


def kills_of_last(path: Path = KILLS) -> dict[str, str]:
    """The cells that killed in the last campaign that was saved, by the id of the mutant."""
    kills: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return kills


def drawn(mutants: Sequence[Mutant], kills: Collection[str], count: int, seed: int) -> list[Mutant]:
    """As many mutants that the source still has, the same ones for the same seed."""
    known = [mutant for mutant in mutants if mutant.id in kills]
    # By id: an edit of one module should not draw other mutants of all the others.
    known.sort(key=lambda mutant: random.Random(f"{seed} {mutant.id}").random())
    return known[:count]


def try_sample(mutants: Sequence[Mutant], kills: Mapping[str, str], workers: int, log: Path) -> Iterator[Result]:
    by_module: dict[str, dict[str, None]] = {}
    for name, cell in kills.items():
        by_module.setdefault(name.partition(":")[0], {})[cell] = None

    def jobs() -> Iterator[Job]:
        for mutant in mutants:
            first = kills[mutant.id]
            others = [cell for cell in by_module[mutant.module] if cell != first][:SECOND_CHANCES]
            yield Job(mutant, tuple(named((first, *others)).values()), {}, BUDGET)

    for _, told in in_forks(jobs(), workers, lambda job: try_mutant(job, log).as_json()):
        yield Result.from_json(told)
