"""A line of releases or commits in which subjects run, with each finished run in the journal and on the screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..releases.environments import Environment, ReleaseError
from ..releases.journal import RunJournal
from ..reports.table import several
from .search import Answer, Samples, answers, left_after
from .subjects import Sample, Subjects


def search(
    subjects: Subjects,
    journal: RunJournal[Sample],
    conditions: str,
    environments: Mapping[str, Callable[[], Environment]],
    named: Sequence[int],
    runs: int,
) -> tuple[dict[str, Answer], Samples]:
    """What is found of each subject, and the samples that show it; those of the journal count.

    `conditions` are what else an outcome depends on. The line has the environments, by labels that begin with the name
    of a release or commit.
    """
    labels, makers = [*environments], [*environments.values()]
    samples: Samples = {
        subject: {index: [*journal.of(label, subject, conditions)] for index, label in enumerate(labels)}
        for subject in subjects.names
    }

    def probe(index: int, lacking: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        name = labels[index].partition(" ")[0]
        left = left_after(index, len(labels), samples, lacking)
        rest = f"; about {left} more releases or commits to try" if left else ""
        tell(f"{name}: trying it, {several(sum(lacking.values()), 'run')}{rest}")
        try:
            for subject, sample in subjects.run(makers[index](), lacking):
                tell(f"{name}: {sample.words}" if len(samples) == 1 else f"{name}: {subject}: {sample.words}")
                if not sample.untestable:
                    journal.add(sample, labels[index], subject, conditions)
                yield subject, sample
        except ReleaseError as error:
            tell(f"{name}: cannot be tested: {error}")
            raise

    return answers(len(labels), named, runs, probe, samples), samples


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
