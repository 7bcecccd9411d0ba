"""Runs what searches ask for: many cells, one line of releases, each release probed for all cells that need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ..releases.release import ReleaseError
from .bisection import Found, Search
from .evidence import Evidence, MissingRunsError, Rule
from .samples import Sample, untestable


class Prober(Protocol):
    """Runs subjects, which are ids of cells or a script, so often each, in the release at a place of the line."""

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]: ...


Samples = dict[str, dict[int, list[Sample]]]
"""By subject and by the place of the release."""


def answers(
    subjects: Sequence[str],
    search: Search[Found],
    rule: Rule,
    probe: Prober,
    samples: Samples,
) -> Mapping[str, Found]:
    """The answer for each subject. `samples` may hold what is known already, and has all that is known afterwards."""
    finished: dict[str, Found] = {}
    while True:
        needs: dict[int, dict[str, int]] = {}
        for subject in subjects:
            if subject in finished:
                continue
            runs_of = samples.setdefault(subject, {})
            try:
                finished[subject] = search(Evidence(runs_of, rule))
            except MissingRunsError as missing:
                lacking = missing.runs - len(runs_of.get(missing.index, ()))
                needs.setdefault(missing.index, {})[subject] = lacking
        if not needs:
            return {subject: finished[subject] for subject in subjects}
        # Many cells change in the same release: the release that most of them ask for comes first.
        index = max(needs, key=lambda place: (len(needs[place]), place))
        for runs in sorted({*needs[index].values()}):
            wanted = [subject for subject, lacking in needs[index].items() if lacking == runs]
            for subject, sample in _probed(probe, index, wanted, runs):
                samples[subject].setdefault(index, []).append(sample)


def _probed(probe: Prober, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
    """So many samples for each subject, or one that says why there are none."""
    lacking = dict.fromkeys(subjects, runs)
    reason = "the probe gave no outcome"
    try:
        for subject, sample in probe(index, subjects, runs):
            lacking[subject] = 0 if sample.untestable else lacking[subject] - 1
            yield subject, sample
    except ReleaseError as error:
        reason = str(error)
    for subject, number in lacking.items():
        if number > 0:
            yield subject, untestable(reason)
