"""A line of releases or commits in which subjects run, with each finished run in the journal and on the screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from ..releases.environments import Environment, ReleaseError
from ..releases.journal import RunJournal
from .search import Found, Samples, Search, answers
from .subjects import Sample, Subjects


@dataclass(frozen=True)
class Line:
    subjects: Subjects
    runs: int
    """How often each of them runs."""
    journal: RunJournal
    conditions: str
    """What else an outcome depends on."""
    labels: Sequence[str]
    """Each begins with the name of a release or commit."""
    environment: Callable[[int], Environment]
    """That of a place in the line."""

    def search(self, search: Search[Found], subjects: Sequence[str]) -> tuple[dict[str, Found], Samples]:
        """What is found of each subject, and the samples that show it; those of the journal count."""
        samples: Samples = {subject: {} for subject in subjects}
        for subject, ran in samples.items():
            for index in range(len(self.labels)):
                ran[index] = [Sample(**data) for data in self.journal.of(*self._words(index, subject))]
        return answers(search, self.runs, self._probe, samples), samples

    def _probe(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        name = self.labels[index].partition(" ")[0]
        try:
            for subject, sample in self.subjects.run(self.environment(index), runs):
                tell(f"{name}: {subject}: {sample.words}")
                if not sample.untestable:
                    self.journal.add(asdict(sample), *self._words(index, subject))
                yield subject, sample
        except ReleaseError as error:
            tell(f"{name}: cannot be tested: {error}")
            raise

    def _words(self, index: int, subject: str) -> tuple[str, ...]:
        return self.labels[index], subject, self.conditions


LineOf: TypeAlias = Callable[[Sequence[str], Callable[[int], Environment]], Line]
"""Makes a line of these labels and environments."""


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
