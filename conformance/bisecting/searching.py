"""Runs what searches need: many cells, one line of releases, each release tried for all cells that need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..releases.release import ReleaseError
from .bisection import Found, Search
from .evidence import Evidence, MissingRunsError
from .samples import Sample, untestable


class Prober(Protocol):
    """Runs subjects, which are ids of cells or a script, so often each, in the release at a place of the line."""

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]: ...


Samples = dict[str, dict[int, list[Sample]]]
"""By subject and by the place of the release."""


def answers(
    subjects: Sequence[str], search: Search[Found], like: Evidence, probe: Prober, samples: Samples
) -> dict[str, Found]:
    """The answer for each subject. `samples` may hold what is known already, and has all that is known afterwards.

    The evidence for each is `like` this one, with the subject's own runs.
    """
    finished: dict[str, Found] = {}
    while True:
        needs: dict[int, dict[str, int]] = {}
        for subject in subjects:
            if subject not in finished:
                runs_of = samples.setdefault(subject, {})
                try:
                    finished[subject] = search(replace(like, samples=runs_of))
                except MissingRunsError as missing:
                    lacking = missing.runs - len(runs_of.get(missing.index, ()))
                    needs.setdefault(missing.index, {})[subject] = lacking
        if not needs:
            return {subject: finished[subject] for subject in subjects}
        # Many cells change in the same release: the release that most of them need comes first.
        index = max(needs, key=lambda place: (len(needs[place]), place))
        for subject, sample in _probed(probe, index, needs[index]):
            samples[subject].setdefault(index, []).append(sample)


def _probed(probe: Prober, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
    """So many samples for each subject, or one that says why there are none."""
    lacking = dict(runs)
    reason = "the probe gave no outcome"
    try:
        for subject, sample in probe(index, runs):
            lacking[subject] = 0 if sample.untestable else lacking[subject] - 1
            yield subject, sample
    except ReleaseError as error:
        reason = str(error)
    for subject, number in lacking.items():
        if number > 0:
            yield subject, untestable(reason)
