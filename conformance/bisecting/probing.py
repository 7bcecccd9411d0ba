"""Probers for the search: in releases or in a checkout, with each finished run in the journal and on the screen."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases.installing import Installer, environment_of
from ..releases.journal import RunJournal
from ..releases.release import Release, ReleaseError
from ..worker.stress import stress
from .findings import Place
from .samples import Sample, counted
from .searching import Prober, Samples
from .subjects import Subjects

TOLD_ONE_BY_ONE = 3
"""So many cells have a line each while the search runs."""


@dataclass(frozen=True)
class ReleaseProber:
    releases: Sequence[Release]
    installer: Installer
    subjects: Subjects

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        yield from self.subjects.run(self.installer.environment(self.releases[index]), runs)


@dataclass(frozen=True)
class CheckoutProber:
    """Tries the packages of a checkout, in the environment of an interpreter."""

    tree: Path
    python: Path
    subjects: Subjects

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        with tempfile.TemporaryDirectory() as folder:
            environment = environment_of(self.python, Path(folder), self.tree)
            yield from self.subjects.run(environment, runs, checkout=True)


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
        found: dict[str, list[Sample]] = {}
        try:
            with stress() if self.stress else contextlib.nullcontext():
                for subject, sample in self.probe(index, runs):
                    self.journal.add(sample.as_json(), *self._words(index, subject))
                    found.setdefault(subject, []).append(sample)
                    yield subject, sample
        except ReleaseError as error:
            tell(f"{name}: cannot be tested: {error}")
            raise
        finally:
            for line in _told(found):
                tell(f"{name}: {line}")

    def _words(self, index: int, subject: str) -> tuple[str, ...]:
        return self.places[index].label, subject, self.conditions


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(found: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    if len(found) > TOLD_ONE_BY_ONE:
        yield _counts(counted(sample for ran in found.values() for sample in ran))
        return
    for subject, ran in found.items():
        words = ran[0].words if len(ran) == 1 else _counts(counted(ran))
        yield words if len(found) == 1 else f"{subject}: {words}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} x {words}" for words, number in counts.items())
