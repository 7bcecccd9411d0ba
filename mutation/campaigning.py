"""A campaign: the chosen mutants, each with the cells and tests that reach it, some mutants at a time."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.reports.journal import Journal, lines_of

from .coverage import IMPORT, Coverage
from .forks import in_forks
from .mutant import Mutant
from .order import Kills, Rarity, in_order
from .pool import Check
from .trial import KILLED, Job, Result, Until, try_mutant, untried


@dataclass(frozen=True)
class Options:
    journal: Path
    workers: int
    budget: float
    """Seconds for one mutant."""
    minutes: float
    """No further mutant begins after this time."""
    until: Until = Until.FIRST


def campaign(
    mutants: Sequence[Mutant],
    pool: Mapping[str, Check],
    coverage: Coverage,
    options: Options,
    earlier_kills: Mapping[str, str],
) -> Iterator[Result]:
    """Try the mutants with what has not tried them; each result is in the journal before it is given.

    What killed a mutant in an earlier campaign comes first.
    """
    past = results_in(options.journal)
    kills, rarity = Kills(), Rarity([one for name, one in coverage.reached.items() if name != IMPORT])
    for result in past.values():
        if result.verdict == KILLED:
            kills.add(result.killer, result.module)
    seconds = {name: one.seconds for name, one in coverage.reached.items()}
    end = time.monotonic() + 60 * options.minutes

    def jobs() -> Iterator[Job]:
        # What survived with some of its pool waits until every mutant has met some.
        for mutant in sorted(mutants, key=lambda mutant: mutant.id in past):
            earlier = past.get(mutant.id)
            if time.monotonic() > end or (earlier and earlier.verdict == KILLED):
                continue
            passed = earlier.passed if earlier else ()
            reaching = [one for one in coverage.reaching(mutant) if one.id not in passed]
            killer = earlier_kills.get(mutant.id, "")
            first = [pool[killer]] if killer in pool and killer not in passed else []
            if reaching or first or earlier is None:
                others = in_order(reaching, pool, mutant.module, kills, rarity)
                checks = (*first, *(each for each in others if each not in first))
                yield Job(mutant, checks, seconds, options.budget, options.until, passed)

    run = functools.partial(_run, log=options.journal.with_name("trials.log"))
    with contextlib.closing(Journal(options.journal)) as journal:
        for _, reported in in_forks(jobs(), options.workers, run):
            result = Result.from_json(reported)
            if result.verdict == KILLED:
                kills.add(result.killer, result.module)
            journal.write(**reported)
            yield result


def results_in(journal: Path) -> dict[str, Result]:
    """The last result of each mutant."""
    return {line["id"]: Result.from_json(line) for line in lines_of(journal, "id")}


def _run(job: Job, log: Path) -> dict[str, object]:
    return (try_mutant(job, log) if job.checks else untried(job.mutant)).as_json()
