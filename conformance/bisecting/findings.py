"""What a search has found, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .bisection import Answer, Change, Kind
from .evidence import Rule, rate
from .samples import OUTPUT, Sample, counted

FOUND, SAME, UNUSABLE, CANNOT_TELL = 0, 1, 2, 3
"""Exit codes."""

WIDTH = 100
MOST_CELLS = 20
MEASURE = "measure with --runs 50 or --confidence 0.99"


@dataclass(frozen=True)
class Place:
    """A release or a commit in the line that is searched."""

    name: str
    """Short."""
    label: str
    """With all that tells it from others."""


Runs = Mapping[int, Sequence[Sample]]

_CODES = {
    Kind.FOUND: FOUND,
    Kind.CANNOT_TELL: CANNOT_TELL,
    Kind.UNTESTABLE: UNUSABLE,
    Kind.ALONE: UNUSABLE,
    Kind.SAME: SAME,
}
"""In their order: anything found is found; otherwise what most needs the user's attention."""


def exit_code(answers: Sequence[Answer]) -> int:
    kinds = {answer.kind for answer in answers}
    return next(code for kind, code in _CODES.items() if kind in kinds)


def report(answers: Mapping[str, Answer], runs: Mapping[str, Runs], places: Sequence[Place], rule: Rule) -> str:
    """The findings; cells with the same changes and outcomes are reported once, with all their names."""
    groups: dict[object, list[str]] = {}
    for subject, answer in answers.items():
        outcomes = tuple(sorted((index, tuple(sorted(counted(ran).items()))) for index, ran in runs[subject].items()))
        groups.setdefault((answer, outcomes), []).append(subject)
    found = []
    for subjects in sorted(groups.values(), key=lambda group: [*_CODES].index(answers[group[0]].kind)):
        head = [*subjects[:MOST_CELLS]]
        head += [f"... and {len(subjects) - MOST_CELLS} more"] if len(subjects) > MOST_CELLS else []
        lines = _Finding(answers[subjects[0]], runs[subjects[0]], places, rule).lines()
        found.append("\n".join((*head, *(f"  {line}" if line else "" for line in lines))))
    return "\n\n".join(found)


@dataclass(frozen=True)
class _Finding:
    answer: Answer
    runs: Runs
    places: Sequence[Place]
    rule: Rule

    def lines(self) -> list[str]:
        """What was found, then each release or commit that ran."""
        witnessed = {index for change in self.answer.changes for index in (change.before, change.after)}
        ran = [index for index, samples in sorted(self.runs.items()) if samples]
        rows = [line for index in ran for line in self._row(index, index in witnessed or not witnessed)]
        return [*(map(self._changed, self.answer.changes) if self.answer.changes else [self._unchanged()]), "", *rows]

    def _changed(self, change: Change) -> str:
        before, after = self._name(change.before), self._name(change.after)
        if change.varying:
            whose = self._names(change.varying)
            return f"CANNOT TELL: {whose} did not do the same each time; {MEASURE}{self._advice(change.varying)}."
        if change.skipped:
            inside = self._names([index for index, _ in change.skipped])
            begin, could = ("CANNOT TELL exactly", "told") if change.unclear else ("FOUND a range", "tested")
            return f"{begin}: the outcome changes between {before} and {after}; {inside} could not be {could}."
        passed_before, passes = self._passes(change.before), self._passes(change.after)
        does = "that passes" if passes and not passed_before else "with another outcome"
        if passed_before and not passes:
            does = "that may fail" if any(sample.passed for sample in self.runs[change.after]) else "that fails"
        return f"FOUND: {after} is the first {does}, after {before}."

    def _unchanged(self) -> str:
        answer = self.answer
        if answer.kind is Kind.UNTESTABLE:
            indexes = [index for index, _ in answer.untestable]
            ends = {*indexes} <= {answer.old, answer.new}
            return f"UNUSABLE: {self._names(indexes)} cannot be tested{', and no other is the end' * ends}."
        old, new = self._name(answer.old), self._name(answer.new)
        if answer.kind is Kind.ALONE:
            return f"UNUSABLE: only {old} can be tested, and there is nothing to compare it with."
        if answer.kind is Kind.SAME:
            hint = "" if self.rule.by_chance else f"; what fails by chance may not have shown: {MEASURE}"
            return f"NOTHING TO FIND: {old} and {new} do not differ{hint}."
        advice = self._advice((answer.old, answer.new))
        if not self.rule.by_chance:
            return f"CANNOT TELL: {old} or {new} did not do the same each time; {MEASURE}{advice}."
        return (
            f"CANNOT TELL: with confidence {self.rule.confidence:g}, so many runs of {old} and {new} may differ by"
            f" chance; allow more --runs, or put --stress on the machine{advice}."
        )

    def _advice(self, varying: Sequence[int]) -> str:
        """If only the output of a script varies: a time or an address is never the same again."""
        ran = [{sample.words for sample in self.runs[index]} for index in varying]
        ends = [{words.partition(OUTPUT)[0] for words in each} for each in ran]
        if any(len(each) > 1 for each in ran) and all(len(each) == 1 for each in ends):
            return ", or use --compare verdict, which ignores what the script prints"
        return ""

    def _row(self, index: int, witnessed: bool) -> Iterator[str]:
        ran, label = self.runs[index], self.places[index].label
        if reason := next((sample.words for sample in ran if sample.untestable), None):
            yield f"{label}: cannot be tested: {reason[:300]}"
            return
        for words, number in counted(ran).most_common():
            often = f"  ({number} of {len(ran)} runs)" if len(ran) > 1 else ""
            yield f"{label}: {words}{often}"
            if witnessed:
                sample = next(sample for sample in ran if sample.words == words)
                yield from (f"    {line[:WIDTH]}" for line in sample.detail.splitlines()[:3])
        if self.rule.by_chance:
            yield f"    {rate(ran, self.rule.confidence)}"

    def _passes(self, index: int) -> bool:
        return all(sample.passed for sample in self.runs[index])

    def _name(self, index: int) -> str:
        return self.places[index].name

    def _names(self, indexes: Sequence[int]) -> str:
        names = [self._name(index) for index in indexes]
        if len(names) > 5:
            return f"{names[0]} to {names[-1]}"
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
