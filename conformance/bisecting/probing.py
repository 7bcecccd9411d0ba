"""Probers for the search: in releases, and with each finished run in the journal and on the screen."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ..releases.installing import Installer
from ..releases.journal import RunJournal
from ..releases.release import Release, ReleaseError
from ..worker.stress import stress
from .findings import Place
from .samples import Sample
from .searching import Prober, Samples
from .subjects import Subjects


@dataclass(frozen=True)
class ReleaseProber:
    releases: Sequence[Release]
    installer: Installer
    subjects: Subjects

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        yield from self.subjects.run(self.installer.environment(self.releases[index]), runs)


@dataclass(frozen=True)
class Journaled:
    """A prober whose finished runs are kept at once."""

    probe: Prober
    journal: RunJournal
    places: Sequence[Place]
    conditions: str
    stress: bool = False

    def known(self, subjects: Sequence[str], fresh: bool = True) -> Samples:
        """The runs of the journal. With a `fresh` start, what could not be tested is tried again."""
        recorded = self.journal.read()
        found: Samples = {subject: {} for subject in subjects}
        for subject in subjects:
            for index in range(len(self.places)):
                ran = [Sample(**data) for data in recorded.get(self._words(index, subject), ())]
                testable = [sample for sample in ran if not sample.untestable]
                found[subject][index] = testable if fresh or not ran[-1:] or not ran[-1].untestable else ran[-1:]
        return found

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        name = self.places[index].name
        what = next(iter(runs)) if len(runs) == 1 else f"{len(runs)} cells"
        most = max(runs.values())
        tell(f"{name}: {what}{f', {most} runs' * (most > 1)} ...")
        counts: Counter[str] = Counter()
        try:
            with stress() if self.stress else contextlib.nullcontext():
                for subject, sample in self.probe(index, runs):
                    self.journal.add(asdict(sample), *self._words(index, subject))
                    counts[sample.words] += 1
                    yield subject, sample
        except ReleaseError as error:
            tell(f"{name}: cannot be tested: {error}")
            raise
        tell(f"{name}: {', '.join(f'{number} x {words}' for words, number in counts.most_common())}")

    def _words(self, index: int, subject: str) -> tuple[str, ...]:
        return self.places[index].label, subject, self.conditions


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
