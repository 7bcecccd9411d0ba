"""A table of cells in columns that are releases, runs, implementations or platforms: which cells differ, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..oracle.verdicts import Outcome, Verdict

NOT_RUN = "not run"


@dataclass(frozen=True)
class Seen:
    """The outcome of one run of one cell."""

    words: str
    """What happened, without the words that differ from run to run: verdict, anomaly and stage."""
    verdict: str
    """Without the signal of a crash."""
    witness: str = ""
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def passed(self) -> bool:
        return self.verdict == Verdict.PASS.value


def in_words(label: str, anomaly: str, stage: str) -> str:
    """A verdict with its details: `fail (lost, callback)`."""
    details = ", ".join(filter(None, (anomaly, stage)))
    return f"{label} ({details})" if details else label


def said(outcome: Outcome) -> str:
    """What happened, without the words that differ from run to run."""
    anomaly = "" if outcome.verdict is Verdict.PASS else outcome.anomaly
    return in_words(outcome.label, anomaly, outcome.stage.value if outcome.stage else "")


@dataclass(frozen=True)
class Column:
    label: str
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the workers said of machine and software, by topology."""


@dataclass(frozen=True)
class Row:
    """A cell in all columns."""

    cell: str
    seen: tuple[tuple[Seen, ...], ...]
    """The runs in each column, in the order of the columns."""
    note: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """What happened in each column; several outcomes in one column are separated by "or"."""
        return tuple(" or ".join(sorted({one.words for one in runs})) or NOT_RUN for runs in self.seen)

    @property
    def counts(self) -> tuple[str, ...]:
        """The same with numbers, where the runs in one column differ."""
        return tuple(
            word if " or " not in word else ", ".join(f"{n} x {what}" for what, n in _counted(runs))
            for word, runs in zip(self.words, self.seen, strict=True)
        )

    @property
    def differs(self) -> bool:
        """Whether two columns differ, or two runs in one column."""
        known = {word for word in self.words if word != NOT_RUN}
        return len(known) > 1 or any(" or " in word for word in known)

    @property
    def compared(self) -> bool:
        """Whether it ran in two columns, without which it can neither agree nor differ."""
        return sum(map(bool, self.seen)) > 1

    @property
    def first_words(self) -> str:
        """What happened in the first column in which it ran."""
        return next((word for word in self.words if word != NOT_RUN), NOT_RUN)


def several(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def consecutive(labels: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The runs of labels with the same word, as `first to last`, with that word."""
    start = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or words[end] != words[start]:
            first, last = labels[start], labels[end - 1]
            yield (first if start == end - 1 else f"{first} to {last}"), words[start]
            start = end


def _in_brackets(counts: Counter[str]) -> str:
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    return f" ({words})" if words else ""


def _counted(runs: Sequence[Seen]) -> list[tuple[str, int]]:
    return Counter(sorted(one.words for one in runs)).most_common()


@dataclass(frozen=True)
class Group:
    """Cells that differ in the same way, in the same columns."""

    words: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Wording:
    """The words of a page for its columns and rows."""

    title: str
    column: str
    """What one column is."""
    differ: str
    same: str
    ordered: bool
    """Whether neighbouring columns with the same outcome are a period."""
    of: str = ""
    """What the columns are of."""
    ran: str = "ran in"
    """With a column after it."""
    left_out: str = "Left out"


@dataclass(frozen=True)
class Table:
    wording: Wording
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """What has no column, each with the reason."""
    problems: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The cells that differ, by the pattern of their outcomes; the largest group first."""
        by_words: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            if row.differs:
                by_words.setdefault(row.words, []).append(row)
        groups = [Group(words, tuple(rows)) for words, rows in by_words.items()]
        return tuple(sorted(groups, key=lambda group: -len(group.rows)))

    @property
    def agreeing(self) -> Counter[str]:
        """The number of cells that do not differ, by their outcome in all columns."""
        return Counter(row.first_words for row in self.rows if row.compared and not row.differs)

    @property
    def not_compared(self) -> Counter[str]:
        """The number of cells that ran in one column at most, always with the same outcome."""
        return Counter(row.first_words for row in self.rows if not row.compared and not row.differs)

    @property
    def partial(self) -> Counter[tuple[str, ...]]:
        """The number of cells that did not run in all columns, by the columns in which they did."""
        counter: Counter[tuple[str, ...]] = Counter()
        for row in self.rows:
            if not all(row.seen):
                counter[tuple(c.label for c, runs in zip(self.columns, row.seen, strict=True) if runs)] += 1
        return counter

    @property
    def environments(self) -> dict[str, tuple[str, ...]]:
        """What differs among the columns' machines and software: by name, with the value in each column."""
        common = set.intersection(*({*column.environment} for column in self.columns)) if self.columns else set()
        # Columns of different platforms have no topology in common.
        places = [sorted(common & {*column.environment} or {*column.environment}) for column in self.columns]
        infos = [[c.environment[place] for place in of] for c, of in zip(self.columns, places, strict=True)]
        names = dict.fromkeys(name for info in infos for one in info for name in one)
        values = {
            name: tuple(" or ".join(dict.fromkeys(one.get(name, "") for one in info)) for info in infos)
            for name in names
        }
        return {name: value for name, value in values.items() if len({*value}) > 1}

    def periods(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """A text of the columns with the same outcome, with that outcome."""
        if not self.wording.ordered:
            for word in dict.fromkeys(words):
                yield ", ".join(c.label for c, of in zip(self.columns, words, strict=True) if of == word), word
            return
        yield from consecutive([column.label for column in self.columns], words)

    def summary(self) -> str:
        differing = sum(len(group.rows) for group in self.groups)
        rest = f"{self.agreeing.total()} {self.wording.same}{_in_brackets(self.agreeing)}"
        if self.not_compared:
            where = f"{self.wording.ran} one {self.wording.column} at most"
            rest += f", {self.not_compared.total()} {where}{_in_brackets(self.not_compared)}"
        cells, columns = several(len(self.rows), "cell"), several(len(self.columns), self.wording.column)
        return f"{cells} with {columns}{self.wording.of}: {differing} {self.wording.differ}, {rest}."
