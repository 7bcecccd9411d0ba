"""A line of releases or commits in which subjects run, with each finished run in the journal and on the screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ..releases.environments import Environment, ReleaseError
from ..releases.journal import RunJournal
from ..reports.table import several
from .search import Answer, Samples, answers, left_after, so_far
from .subjects import Sample, Subjects


@dataclass(frozen=True)
class Line:
    subjects: Subjects
    journal: RunJournal
    conditions: str
    """What else an outcome depends on."""
    labels: Sequence[str]
    """Each begins with the name of a release or commit."""
    environments: Sequence[Callable[[], Environment]]
    """Makes that of each place in the line."""

    def search(self, named: Sequence[int], runs: int) -> tuple[dict[str, Answer], Samples]:
        """What is found of each subject, and the samples that show it; those of the journal count.

        After an interrupt it is what is found so far.
        """
        samples: Samples = {
            subject: {
                index: [Sample(**data) for data in self.journal.of(*self._words(index, subject))]
                for index in range(len(self.labels))
            }
            for subject in self.subjects.names
        }
        try:
            return answers(len(self.labels), named, runs, partial(self._probe, samples), samples), samples
        except KeyboardInterrupt:
            return so_far(len(self.labels), named, runs, samples), samples

    def _probe(self, samples: Samples, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        name = self.labels[index].partition(" ")[0]
        left = left_after(index, len(self.labels), samples, runs)
        rest = f"; about {left} {'is' if left == 1 else 'are'} left after it" if left else ""
        tell(f"{name}: trying it, {several(sum(runs.values()), 'run')}{rest}")
        try:
            for subject, sample in self.subjects.run(self.environments[index](), runs):
                tell(f"{name}: {sample.words}" if len(samples) == 1 else f"{name}: {subject}: {sample.words}")
                if not sample.untestable:
                    self.journal.add(asdict(sample), *self._words(index, subject))
                yield subject, sample
        except ReleaseError as error:
            tell(f"{name}: cannot be tested: {error}")
            raise

    def _words(self, index: int, subject: str) -> tuple[str, ...]:
        return self.labels[index], subject, self.conditions


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
