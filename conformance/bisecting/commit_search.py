"""Commits as the places of a search: the ends, each step of `git bisect run`, and what lies beside the change."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases.installing import environment_of
from ..releases.journal import RunJournal
from ..releases.release import ReleaseError
from .bisection import Answer, Kind, between
from .commits import Repository
from .evidence import Evidence, Relation, Rule
from .findings import Place
from .probing import Journaled
from .samples import Sample
from .searching import Samples, answers
from .subjects import Subjects

GOOD, BAD, CANNOT_TEST, STOP = 0, 1, 125, 128
"""What `git bisect run` understands; it skips a commit at 125, and ends at 128."""


@dataclass(frozen=True)
class Trial:
    """How commits are tried."""

    python: Path
    subjects: Subjects
    journal: RunJournal
    conditions: str
    rule: Rule
    stress: bool = False

    def probe(self, tree: Repository, commits: Sequence[str]) -> Journaled:
        prober = _CommitProber(tree, commits, self.python, self.subjects)
        places = [tree.place(commit) for commit in commits]
        return Journaled(prober, self.journal, places, self.conditions, self.stress)


@dataclass(frozen=True)
class _CommitProber:
    """Tries the packages of commits, in the environment of an interpreter."""

    tree: Repository
    commits: Sequence[str]
    python: Path
    subjects: Subjects

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        if self.tree.commit("HEAD") != self.commits[index]:
            self.tree.check_out(self.commits[index])
        with tempfile.TemporaryDirectory() as folder:
            environment = environment_of(self.python, Path(folder), self.tree.path)
            yield from self.subjects.run(environment, runs, checkout=True)


def search_commits(
    trial: Trial, tree: Repository, old: str, new: str, step: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[dict[str, Answer], Samples, Sequence[Place]]]:
    """What is found of the subjects; `step` is the command of one step, without its subject."""
    tree.check_out(old)
    ends, samples, places = _searched(trial, tree, [old, new], trial.subjects.names, fresh=True)
    changed = [subject for subject, answer in ends.items() if answer.kind is Kind.FOUND]
    if others := {subject: answer for subject, answer in ends.items() if subject not in changed}:
        yield others, samples, places
    for subject in changed:
        before, suspects = tree.bisect(old, new, [*step, subject], environment)
        # All of these have run in the steps; what lies beside the change runs again.
        yield _searched(trial, tree, [*dict.fromkeys((old, before, *suspects, new))], [subject])


def _searched(
    trial: Trial, tree: Repository, commits: Sequence[str], subjects: Sequence[str], fresh: bool = False
) -> tuple[dict[str, Answer], Samples, Sequence[Place]]:
    probe = trial.probe(tree, commits)
    samples = probe.known(subjects, fresh)
    found = answers(subjects, between(0, len(commits) - 1), Evidence({}, trial.rule), probe, samples)
    return found, samples, probe.places


def judge(trial: Trial, checkout: Repository, ends: Sequence[str]) -> int:
    """The exit code of one step: whether the commit that is checked out does what the older end does.

    The ends do not run again. Without them, every run must pass.
    """
    commits = [*ends, checkout.commit("HEAD")]
    here = len(ends)
    probe = trial.probe(checkout, commits)
    subjects = trial.subjects.names

    def verdict(evidence: Evidence) -> int:
        if evidence.why_untestable(here):
            return CANNOT_TEST
        if not ends:
            return GOOD if all(sample.passed for sample in evidence.samples[here]) else BAD
        relation = evidence.relation(here, 0, 1)
        return {Relation.OLD: GOOD, Relation.UNCLEAR: CANNOT_TEST}.get(relation, BAD)

    samples = probe.known(subjects)
    if any(not samples[subject][end] for subject in subjects for end in range(here)):
        raise ReleaseError(f"{trial.journal.path} has no runs of the ends, which `bisect --repo` gives to its steps")
    evidence = Evidence({}, trial.rule, given=frozenset(range(here)))
    found = answers(subjects, verdict, evidence, probe, samples)
    return next(code for code in (CANNOT_TEST, BAD, GOOD) if code in found.values())
