"""The findings of a search, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..oracle.repetition import interval
from ..reports.visible import clipped
from .search import CONFIDENCE, CONFIRMING_RUNS, Answer, Change, Kind
from .subjects import Sample, counted

CODES = {Kind.UNFINISHED: 130, Kind.FOUND: 0, Kind.CANNOT_TELL: 3, Kind.UNTESTABLE: 2, Kind.SAME: 1}
"""Exit codes, in their order: unless interrupted, anything found is found; then what needs the user's attention."""

WIDTH = 300
MEASURE = "measure with --runs 50"


def exit_code(answers: Sequence[Answer]) -> int:
    kinds = {answer.kind for answer in answers}
    return next(code for kind, code in CODES.items() if kind in kinds)


def report(
    answers: Mapping[str, Answer],
    samples: Mapping[str, Mapping[int, Sequence[Sample]]],
    labels: Sequence[str],
    good: str = "",
    steps: Callable[[str, str, str], Sequence[str]] = lambda subject, before, after: (),
) -> str:
    """The findings; cells with the same are reported once, with all their names. `good` is an end that should pass.

    A label begins with the name of the release or commit, and may have more words to distinguish it from others.
    `steps` says what to do next with a subject that changes between two of them.
    """
    groups: dict[object, list[str]] = {}
    for subject, answer in answers.items():
        outcomes = ((index, *sorted(counted(ran).items())) for index, ran in sorted(samples[subject].items()))
        groups.setdefault((answer, *outcomes), []).append(subject)
    found = []
    for subjects in sorted(groups.values(), key=lambda group: [*CODES].index(answers[group[0]].kind)):
        answer = answers[subjects[0]]
        lines = [clipped(line, WIDTH) for line in _lines(answer, samples[subjects[0]], labels, good)]
        if answer.kind is Kind.FOUND:
            ends = [[labels[end].partition(" ")[0] for end in (one.before, one.after)] for one in answer.changes]
            lines += ["", *(step for before, after in ends for step in steps(subjects[0], before, after))]
        found.append("\n".join((*subjects, *(f"  {line}".rstrip() for line in lines))).rstrip())
    return "\n\n".join(found)


def _lines(answer: Answer, samples: Mapping[int, Sequence[Sample]], labels: Sequence[str], good: str) -> Iterator[str]:
    """What was found, then each release or commit that ran."""
    names = [label.partition(" ")[0] for label in labels]
    for change in answer.changes:
        yield _changed(answer, change, samples, names)
    if not answer.changes:
        yield _unchanged(answer, _listed([names[end] for end in answer.ends]))
    measured = answer.kind not in (Kind.UNFINISHED, Kind.UNTESTABLE)
    if good and measured and not any(sample.passed for end in answer.ends for sample in samples[end]):
        yield f"{good}, named --good, fails too."
    yield ""
    for index, ran in sorted(samples.items()):
        if why := next((sample.words for sample in ran if sample.untestable), None):
            yield f"{labels[index]}: cannot be tested: {why}"
            continue
        for words, number in counted(ran).most_common():
            yield f"{labels[index]}: {words}" + (f"  ({number} of {len(ran)} runs)" if len(ran) > 1 else "")
            if not answer.changes or any(index in (change.before, change.after) for change in answer.changes):
                witness = next(sample.detail for sample in ran if sample.words == words)
                yield from (f"    {line}" for line in witness.splitlines()[:3])
        if len(ran) > CONFIRMING_RUNS:
            failed = sum(not sample.passed for sample in ran)
            low, high = interval(failed, len(ran), CONFIDENCE)
            yield f"    {failed} of {len(ran)} fail (rate {low:.3f} to {high:.3f})"


def _changed(answer: Answer, change: Change, samples: Mapping[int, Sequence[Sample]], names: Sequence[str]) -> str:
    before, after = names[change.before], names[change.after]
    if answer.kind is Kind.UNFINISHED:
        return f"NOT FINISHED: the outcome changes between {before} and {after}."
    if {*change.unclear} & {change.before, change.after}:
        unclear = _listed([names[index] for index in change.unclear])
        return f"CANNOT TELL: {unclear} did not do the same each time; {MEASURE}."
    if inside := names[change.before + 1 : change.after]:
        begin, could = ("CANNOT TELL exactly", "told") if change.unclear else ("FOUND a range", "tested")
        return f"{begin}: the outcome changes between {before} and {after}; {_listed(inside)} could not be {could}."
    passed, passes = ([sample.passed for sample in samples[index]] for index in (change.before, change.after))
    does = "that passes" if all(passes) and not all(passed) else "with another outcome"
    if all(passed) and not all(passes):
        does = "that may fail" if any(passes) else "that fails"
    return f"FOUND: {after} is the first {does}, after {before}."


def _unchanged(answer: Answer, ends: str) -> str:
    if answer.kind is Kind.UNFINISHED:
        few = "fewer than two releases or commits have run"
        return f"NOT FINISHED: {f'{ends} do not differ' if len(answer.ends) > 1 else few}."
    if answer.kind is Kind.UNTESTABLE:
        return f"UNUSABLE: {ends or 'what is beside the only release'} cannot be tested; two ends are needed."
    if answer.kind is Kind.SAME:
        return f"NOTHING TO FIND: {ends} do not differ; what fails by chance may not have shown: {MEASURE}."
    return f"CANNOT TELL: with confidence {CONFIDENCE:g}, {ends} may differ by chance; use more --runs."


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if len(names) > 5 else " and ".join(names)
