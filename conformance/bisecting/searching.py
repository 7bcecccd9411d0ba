"""Runs what searches ask for: many cells, one line of releases, each release probed for all cells that need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    several: bool = False,
) -> Mapping[str, Found]:
    """The answer for each subject. `samples` may hold what is known already, and has all that is known afterwards.

    With `several`, the prober is called from several threads at once, for all releases that are asked for.
    """
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
                for place in (missing.index, *(missing.others if several else ())):
                    needs.setdefault(place, {})[subject] = missing.runs - len(runs_of.get(place, ()))
        if not needs:
            return {subject: finished[subject] for subject in subjects}
        if several and len(needs) > 1:
            _probe_all(probe, needs, samples)
        else:
            # Many cells change in the same release: the release that most of them ask for comes first.
            index = max(needs, key=lambda place: (len(needs[place]), place))
            _probe(probe, index, needs[index], samples)


def _probe(probe: Prober, index: int, needed: Mapping[str, int], samples: Samples) -> None:
    for runs in sorted({*needed.values()}):
        wanted = [subject for subject, lacking in needed.items() if lacking == runs]
        for subject, sample in _probed(probe, index, wanted, runs):
            samples[subject].setdefault(index, []).append(sample)


def _probe_all(probe: Prober, needs: Mapping[int, Mapping[str, int]], samples: Samples) -> None:
    """Each release in a thread, which only waits for what runs elsewhere."""
    pool = ThreadPoolExecutor(len(needs))
    try:
        for waiting in [pool.submit(_probe, probe, index, needed, samples) for index, needed in needs.items()]:
            waiting.result()
    finally:
        # After an interrupt, the threads end when the prober ends what they wait for.
        pool.shutdown(wait=False, cancel_futures=True)


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
