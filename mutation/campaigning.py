"""A campaign: the chosen mutants, each with the cells that reach it, some mutants at a time."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.engine.tasks import Task

from . import journal
from .coverage import IMPORT, Coverage
from .forks import in_forks
from .mutant import Mutant
from .order import Kills, Rarity, in_order
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
    tasks: Mapping[str, Task],
    coverage: Coverage,
    options: Options,
    earlier_kills: Mapping[str, str],
    checks: Mapping[str, str],
) -> Iterator[Result]:
    """Try the mutants with the cells that have not tried them; each result is in the journal before it is given.

    Of each mutant, the test that is named as its check comes first, and then the cell of an earlier campaign's kill.
    """
    past = journal.read(options.journal)
    kills, rarity = Kills(), Rarity([one for name, one in coverage.cells.items() if name != IMPORT])
    for result in past.values():
        if result.verdict == KILLED:
            kills.add(result.cell, result.module)
    seconds = {cell: reached.seconds for cell, reached in coverage.cells.items()}
    end = time.monotonic() + 60 * options.minutes

    def jobs() -> Iterator[Job]:
        # What survived with some cells waits until every mutant has met some.
        for mutant in sorted(mutants, key=lambda mutant: mutant.id in past):
            earlier = past.get(mutant.id)
            if time.monotonic() > end or (earlier and earlier.verdict == KILLED):
                continue
            passed = earlier.passed if earlier else ()
            reaching = [one for one in coverage.reaching(mutant) if one.cell not in passed]
            first = [
                tasks[cell] for cell in (earlier_kills.get(mutant.id, ""),) if cell in tasks and cell not in passed
            ]
            check = checks.get(mutant.id, "")
            if reaching or first or check or earlier is None:
                cells = in_order(reaching, tasks, mutant.module, kills, rarity)
                cells = [*first, *(task for task in cells if task not in first)]
                yield Job(mutant, tuple(cells), seconds, options.budget, options.until, passed, check)

    run = functools.partial(_run, log=options.journal.with_name("trials.log"))
    for _, told in in_forks(jobs(), options.workers, run):
        result = Result.from_json(told)
        if result.verdict == KILLED:
            kills.add(result.cell, result.module)
        journal.append(options.journal, result)
        yield result


def _run(job: Job, log: Path) -> dict[str, object]:
    return (try_mutant(job, log) if job.tasks or job.check else untried(job.mutant)).as_json()
