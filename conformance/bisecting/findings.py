"""What a search has found, in words and as a line of marks."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .bisection import Answer, Change, Kind
from .evidence import Rule, rate
from .samples import OUTPUT, Sample, counted

FOUND, SAME, UNUSABLE, CANNOT_TELL = 0, 1, 2, 3
"""Exit codes."""

WIDTH = 100
MOST_CELLS = 20
MOST_REASONS = 12
MEASURE = "measure with --runs 50 or --confidence 0.99"
MOST_PLACES = 40
"""Of a longer line, such as one of commits, only what was probed is drawn."""

PASSED, MIXED, UNTESTABLE, NOT_PROBED = ".", "~", "?", " "


@dataclass(frozen=True)
class Place:
    """A release or a commit in the line that is searched."""

    name: str
    """Short, for a line of marks."""
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
    """The findings; cells with the same changes and outcomes are told once, with all their names."""
    groups: dict[object, list[str]] = {}
    for subject, answer in answers.items():
        groups.setdefault(_likeness(answer, runs[subject], rule), []).append(subject)
    told = []
    order = [*_CODES]
    for subjects in sorted(groups.values(), key=lambda group: order.index(answers[group[0]].kind)):
        subject = subjects[0]
        head = [*subjects[:MOST_CELLS]]
        head += [f"... and {len(subjects) - MOST_CELLS} more"] if len(subjects) > MOST_CELLS else []
        lines = Finding(answers[subject], runs[subject], places, rule).lines()
        told.append("\n".join((*head, *(f"  {line}" if line else "" for line in lines))))
    return "\n\n".join(told)


def _likeness(answer: Answer, runs: Runs, rule: Rule) -> object:
    outcomes = tuple(sorted((index, tuple(sorted(counted(ran).items()))) for index, ran in runs.items()))
    if not rule.by_chance and answer.kind is Kind.SAME:
        # Which releases between equal ends were probed does not matter.
        return answer.kind, outcomes[0][1] if outcomes else None, answer.untestable
    return answer, outcomes


@dataclass(frozen=True)
class Finding:
    answer: Answer
    runs: Runs
    places: Sequence[Place]
    rule: Rule

    def lines(self) -> list[str]:
        answer = self.answer
        if answer.kind is Kind.UNTESTABLE:
            return ["UNUSABLE: " + self._untestable(), *self._reasons(answer.untestable)]
        told = []
        for change in answer.changes:
            told += self._told(change)
        if answer.kind is Kind.ALONE:
            only = f"only {self._name(answer.old)} can be tested, and there is nothing to compare it with"
            told = [f"UNUSABLE: {only}.", *self._outcome(answer.old)]
        elif not answer.changes:
            told = [self._no_difference(), *self._outcome(answer.old), *self._outcome(answer.new)]
        told += ["", *self.picture()]
        if self.rule.by_chance:
            told += ["", *self._rates()]
        if skipped := [*answer.untestable, *(each for change in answer.changes for each in change.skipped)]:
            told += ["", "could not be tested, or not be told:", *self._reasons(skipped)]
        return told

    def _told(self, change: Change) -> list[str]:
        before, after = self._name(change.before), self._name(change.after)
        if change.varying:
            whose = " and ".join(self._name(index) for index in change.varying)
            first = f"CANNOT TELL: {whose} did not do the same each time; {self._measure(change.varying)}."
        elif change.skipped:
            inside = self._list([index for index, _ in change.skipped])
            could = "could not be told" if change.unclear else "could not be tested"
            begin = "CANNOT TELL exactly: the" if change.unclear else "FOUND a range: the"
            first = f"{begin} outcome changes between {before} and {after}; {inside} {could}."
        else:
            first = f"FOUND: {after} is the first {self._what_it_does(change)}, after {before}."
        return [first, *self._outcome(change.before), *self._outcome(change.after)]

    def _what_it_does(self, change: Change) -> str:
        passed_before, passes = self._passes(change.before), self._passes(change.after)
        if passed_before and passes:
            return "with another outcome"
        if passed_before:
            return "that fails" if not any(sample.passed for sample in self.runs[change.after]) else "that may fail"
        return "that passes" if passes else "with another outcome"

    def _no_difference(self) -> str:
        old, new = self._name(self.answer.old), self._name(self.answer.new)
        output = self._output((self.answer.old, self.answer.new))
        if self.answer.kind is Kind.CANNOT_TELL and not self.rule.by_chance:
            return f"CANNOT TELL: {old} or {new} did not do the same each time; {MEASURE}{output}."
        if self.answer.kind is Kind.CANNOT_TELL:
            return (
                f"CANNOT TELL: with confidence {self.rule.confidence:g}, so many runs of {old} and {new} may differ by"
                f" chance; allow more --runs, or put --stress on the machine{output}."
            )
        hint = "" if self.rule.by_chance else f"; what fails by chance may not have shown: {MEASURE}"
        return f"NOTHING TO FIND: {old} and {new} do not differ{hint}."

    def _measure(self, varying: Sequence[int]) -> str:
        """What to do about releases that vary."""
        return MEASURE + self._output(varying)

    def _output(self, indexes: Sequence[int]) -> str:
        """Advice if only the output of a script varies: a time or an address is never the same again."""
        ran = [{sample.words for sample in self.runs[index]} for index in indexes]
        ends = [{words.partition(OUTPUT)[0] for words in each} for each in ran]
        if any(len(each) > 1 for each in ran) and all(len(each) == 1 for each in ends):
            return ", or use --compare verdict, which ignores what the script prints"
        return ""

    def _untestable(self) -> str:
        indexes = [index for index, _ in self.answer.untestable]
        if not {*indexes} <= {self.answer.old, self.answer.new}:
            return "nothing can be tested:"
        what = "is an end" if len(indexes) == 1 else "are the ends"
        return f"{self._list(indexes)} cannot be tested, and {what}:"

    def _outcome(self, index: int) -> Iterator[str]:
        ran = self.runs[index]
        counts = counted(ran)
        for words, number in counts.most_common():
            often = f"  ({number} of {len(ran)} runs)" if len(ran) > 1 else ""
            yield f"  {self.places[index].label}: {words}{often}"
            sample = next(sample for sample in ran if sample.words == words)
            yield from (f"      {line[:WIDTH]}" for line in sample.detail.splitlines()[:3])

    def _reasons(self, skipped: Sequence[tuple[int, str]]) -> Iterator[str]:
        for index, reason in skipped[:MOST_REASONS]:
            yield f"  {self._name(index)}: {reason[:300]}"
        if len(skipped) > MOST_REASONS:
            yield f"  ... and {len(skipped) - MOST_REASONS} more"

    def _rates(self) -> Iterator[str]:
        yield f"rates of failure, with confidence {self.rule.confidence:g}:"
        for index in sorted(self.runs):
            if not any(sample.untestable for sample in self.runs[index]):
                yield f"  {self._name(index)}: {rate(self.runs[index], self.rule.confidence)}"

    def picture(self) -> list[str]:
        """The line of releases with a mark under each, and what the marks mean."""
        marks: dict[str, str] = {}
        drawn = [(place.name, self._mark(index, marks)) for index, place in self._shown()]
        lines = []
        while drawn:
            row, width = [], 0
            while drawn and width + len(drawn[0][0]) + 1 <= WIDTH:
                row.append(drawn.pop(0))
                width += len(row[-1][0]) + 1
            lines.append(" ".join(name for name, _ in row))
            lines.append(" ".join(mark.center(len(name)) for name, mark in row).rstrip())
        meanings = [f"{mark} {words}" for words, mark in marks.items()]
        return [*lines, *textwrap.wrap("   ".join(meanings), WIDTH, break_long_words=False)]

    def _shown(self) -> list[tuple[int, Place]]:
        """All places of a short line; of a long one, such as commits, those that were probed."""
        everything = [*enumerate(self.places)]
        if len(everything) <= MOST_PLACES:
            return everything
        return [(index, place) for index, place in everything if index in self.runs]

    def _mark(self, index: int, marks: dict[str, str]) -> str:
        ran = self.runs.get(index, ())
        if not ran:
            return NOT_PROBED
        if any(sample.untestable for sample in ran):
            return marks.setdefault("could not be tested", UNTESTABLE)
        words = {sample.words: sample.passed for sample in ran}
        if len(words) > 1:
            return marks.setdefault("not the same each time", MIXED)
        ((only, passed),) = words.items()
        letters = [mark for mark in marks.values() if mark in string.ascii_uppercase]
        unused = string.ascii_uppercase[len(letters) % len(string.ascii_uppercase)]
        return marks.setdefault(only, PASSED if passed and PASSED not in marks.values() else unused)

    def _passes(self, index: int) -> bool:
        return all(sample.passed for sample in self.runs[index])

    def _name(self, index: int) -> str:
        return self.places[index].name

    def _list(self, indexes: Sequence[int]) -> str:
        names = [self._name(index) for index in indexes]
        if len(names) > 5:
            return f"{len(names)} between them"
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
