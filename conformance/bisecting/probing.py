"""Probers for the search: in releases or in commits, with each finished run in the journal and on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases.environments import Environments
from ..releases.folders import sources
from ..releases.release import ReleaseError
from ..worker.processes import OtherPython
from .candidates import Candidate
from .commits import History, Repository, link_packages
from .findings import Place
from .probe_journal import ProbeJournal
from .samples import Sample, counted
from .searching import Prober, Samples
from .subjects import Question, Site

TOLD_ONE_BY_ONE = 3
"""So many cells have a line each while the search runs."""


@dataclass(frozen=True)
class ReleaseProber:
    candidates: Sequence[Candidate]
    environments: Environments
    question: Question

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        candidate = self.candidates[index]
        if candidate.release is None:
            raise ReleaseError(candidate.reason)
        environment = self.environments.get(candidate.release)
        python = OtherPython(environment.python, candidate.release.jaxlib, sources())
        yield from self.question.ask(Site(python, candidate.release.jax), subjects, runs)


@dataclass(frozen=True)
class SourcePython(OtherPython):
    """An interpreter that finds packages of a checkout before the installed ones."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in inherited.items() if name != "PYTHONPATH"}
        # The current folder, which may be another checkout, must not come before the path.
        found = super().environment(kept) | {"PYTHONSAFEPATH": "1"}
        # Of two commits, modules of one size and one second are the same to Python, if they were compiled.
        return found | {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Base:
    """The environment that commits are tried in."""

    python: Path
    jax: str
    jaxlib: str


def site_of(tree: Path, base: Base, scratch: Path) -> Site:
    """The packages of a checkout in the environment of the base."""
    source = scratch / "source"
    link_packages(tree, source)
    python = SourcePython(base.python, base.jaxlib, (source, *sources()))
    return Site(python, base.jax, source)


@dataclass(frozen=True)
class CommitProber:
    repository: Repository
    tree: Path
    history: History
    base: Base
    question: Question

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        commit = self.history.commits[index]
        self.repository.check_out(commit, self.tree)
        yield from self.question.ask(site_of(self.tree, self.base, self.tree.parent), subjects, runs)


@dataclass
class Journaled:
    """A prober whose finished runs are kept at once."""

    probe: Prober
    journal: ProbeJournal
    places: Sequence[Place]
    conditions: str
    tell: Callable[[str], None]

    def known(self, subjects: Sequence[str]) -> Samples:
        """The runs that an earlier search has finished."""
        return {
            subject: {
                index: ran
                for index in range(len(self.places))
                if (ran := self.journal.known(*self._key(index, subject)))
            }
            for subject in subjects
        }

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        what = subjects[0] if len(subjects) == 1 else f"{len(subjects)} cells"
        often = f", {runs} runs" if runs > 1 else ""
        self.tell(f"{self.places[index].name}: {what}{often} ...")
        found: dict[str, list[Sample]] = {}
        try:
            for subject, sample in self.probe(index, subjects, runs):
                self.journal.add(sample, *self._key(index, subject))
                found.setdefault(subject, []).append(sample)
                yield subject, sample
        except ReleaseError as error:
            self.tell(f"{self.places[index].name}: cannot be tested: {error}")
            raise
        finally:
            for line in _told(found):
                self.tell(f"{self.places[index].name}: {line}")

    def _key(self, index: int, subject: str) -> tuple[str, str, str]:
        return self.places[index].label, subject, self.conditions


def _told(found: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    if len(found) > TOLD_ONE_BY_ONE:
        counts = counted(sample for ran in found.values() for sample in ran)
        yield _counts(counts)
        return
    for subject, ran in found.items():
        words = ran[0].words if len(ran) == 1 else _counts(counted(ran))
        yield words if len(found) == 1 else f"{subject}: {words}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} x {words}" for words, number in counts.items())
