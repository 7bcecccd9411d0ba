"""A table of cells in columns, which are releases, results or implementations: which cells differ, and how."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..oracle.verdicts import Verdict, in_words
from .visible import clipped, in_a_line

NOT_RUN = "not run"
PASS = Verdict.PASS.value
NOT_APPLICABLE = in_words(Verdict.UNSUPPORTED.value, None, "not applicable")

FIRST_WORDS = 6
"""So many words of a witness distinguish causes."""


@dataclass(frozen=True)
class Seen:
    """The outcome of one cell in one column."""

    words: str
    """What happened, without the words that differ from run to run: verdict, anomaly and stage."""
    witness: str = ""
    """Its first line, or the last one of a traceback, which is the error."""

    @staticmethod
    def of(words: str, witness: str) -> Seen:
        lines = witness.strip().splitlines() or [""]
        return Seen(words, clipped(lines[-1 if lines[0].startswith("Traceback ") else 0]))


@dataclass(frozen=True)
class Column:
    label: str
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the workers reported of machine and software, by topology."""


@dataclass(frozen=True)
class Row:
    """A cell in all columns."""

    cell: str
    seen: tuple[Seen | None, ...]
    """In the order of the columns; None where the cell did not run."""
    by_chance: bool = False
    """Whether the outcomes are those that a known failure has by chance, so that their difference shows nothing."""
    report: str = ""
    """That of a known failure."""

    @property
    def titled(self) -> str:
        return f"{self.cell} ({self.report})" if self.report else self.cell

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(one.words if one else NOT_RUN for one in self.seen)

    @property
    def outcomes(self) -> list[str]:
        """The different outcomes."""
        return list(dict.fromkeys(one.words for one in self.seen if one))

    @property
    def differs(self) -> bool:
        return len({*self.outcomes} - {NOT_APPLICABLE}) > 1 and not self.by_chance

    @property
    def lacks(self) -> bool:
        """Whether some columns lack what it needs, and the others have one outcome."""
        return NOT_APPLICABLE in self.outcomes and len(self.outcomes) == 2

    @property
    def never_passes(self) -> bool:
        """Whether it has one outcome everywhere, which is no pass; to lack what the cell needs is no failure."""
        return len(self.outcomes) == 1 and self.outcomes[0] not in (PASS, NOT_APPLICABLE)

    @property
    def witnesses(self) -> dict[str, tuple[int, str]]:
        """The first witness of each outcome, with the place of its column."""
        found: dict[str, tuple[int, str]] = {}
        for place, one in enumerate(self.seen):
            if one and one.witness:
                found.setdefault(one.words, (place, one.witness))
        return found


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    of_releases: bool = False
    """Whether the columns are releases, so that neighbours with the same outcome are a period."""
    unfinished: str = ""
    """How much has run, if not all has."""

    @property
    def groups(self) -> dict[tuple[str, ...], list[Row]]:
        """The cells that differ, by their outcomes, the largest group first; then those that lack or never pass."""
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            if row.differs or row.lacks or (self.of_releases and row.never_passes):
                found.setdefault(row.words, []).append(row)
        return dict(sorted(found.items(), key=lambda group: (not group[1][0].differs, -len(group[1]))))

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """A cell of each group that differs, and the columns beside the first change of its outcome."""
        found = []
        for row in (rows[0] for rows in self.groups.values() if rows[0].differs):
            seen = [(column.label, words) for column, words in zip(self.columns, row.words, strict=True)]
            ran = [(label, words) for label, words in seen if words not in (NOT_RUN, NOT_APPLICABLE)]
            found.append(next((row.cell, a, b) for (a, one), (b, other) in pairwise(ran) if one != other))
        return found

    @property
    def chance(self) -> list[Row]:
        return [row for row in self.rows if row.by_chance and len(row.outcomes) > 1]

    @property
    def environments(self) -> dict[str, tuple[str, ...]]:
        """What differs among the columns' machines and software: by name, with the value in each column."""
        common = set.intersection(*({*column.environment} for column in self.columns)) if self.columns else set()
        # Columns without a common topology are compared by all of their own.
        places = [sorted(common or column.environment) for column in self.columns]
        infos = [[c.environment[place] for place in own] for c, own in zip(self.columns, places, strict=True)]
        values = {
            name: own_flags([" or ".join(dict.fromkeys(one[name] for one in info if one.get(name))) for info in infos])
            for name in dict.fromkeys(name for info in infos for one in info for name in one)
        }
        return {name: value for name, value in values.items() if len({*value}) > 1}

    def periods(self, words: Sequence[str]) -> list[tuple[str, str]]:
        """The columns with the same outcome, in words, with that outcome."""
        labels = [column.label for column in self.columns]
        if self.of_releases:
            return consecutive(labels, words)
        at = {word: [label for label, own in zip(labels, words, strict=True) if own == word] for word in words}
        return [(", ".join(where), word) for word, where in at.items()]

    def summary(self) -> str:
        differing = sum(row.differs for row in self.rows)
        alike = [(row.outcomes[0] if row.outcomes else NOT_RUN, row) for row in self.rows if len(row.outcomes) < 2]
        # A cell that ran in one column alone can neither agree nor differ.
        agreeing = Counter(word for word, row in alike if len(row.seen) - row.seen.count(None) > 1)
        alone = Counter(word for word, row in alike) - agreeing
        differ, same = ("changed", "never changed") if self.of_releases else ("differ", "agree")
        column = "release" if self.of_releases else "column"
        columns = several(len(self.columns), column) + " of JAX" * self.of_releases
        lacking = sum(row.lacks for row in self.rows)
        rest = f"{len(self.chance)} by chance, " if self.chance else ""
        rest += f"{lacking} unsupported in some {column}s, " if lacking else ""
        rest += f"{agreeing.total()} {same}{_in_brackets(agreeing)}"
        rest += f", {alone.total()} ran in one {column} at most{_in_brackets(alone)}" if alone else ""
        return f"{several(len(self.rows), 'cell')} with {columns}: {differing} {differ}, {rest}."

    def __str__(self) -> str:
        return "\n".join(map(in_a_line, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"{self.unfinished} {self.summary()}".strip()
        if self.of_releases:
            yield f"Only these ran: {', '.join(column.label for column in self.columns)}."
        partial = Counter(
            tuple(column.label for column, one in zip(self.columns, row.seen, strict=True) if one)
            for row in self.rows
            if None in row.seen
        )
        for labels, count in partial.most_common():
            where = f"ran in {', '.join(labels)} alone" if labels else "did not run"
            yield f"{several(count, 'cell')} {where}"
        if self.environments:
            yield from ("", "environments:")
        yield from (f"  {name}: {self._where(values)}" for name, values in self.environments.items())
        for words, rows in self.groups.items():
            never = " never passed" * rows[0].never_passes
            yield from ("", f"{several(len(rows), 'cell')}{never}: {self._where(words)}")
            yield from self._cells(rows)
        if self.chance:
            yield from ("", f"{several(len(self.chance), 'cell')} by chance: known to pass in some runs")
        for row in self.chance:
            yield f"  {row.titled}: {self._where(row.words)}"

    def _cells(self, rows: Sequence[Row]) -> Iterator[str]:
        """The cells of a group: those with the same words in their witnesses, then the witnesses of the first one."""
        causes: dict[object, list[Row]] = {}
        for row in rows:
            causes.setdefault(tuple(first_words(witness) for _, witness in row.witnesses.values()), []).append(row)
        for alike in causes.values():
            yield from (f"  {row.titled}" for row in alike)
            for place, witness in alike[0].witnesses.values():
                yield f"    in {self.columns[place].label}: {witness}"

    def _where(self, words: Sequence[str]) -> str:
        return "; ".join(f"{word} in {where}" for where, word in self.periods(words))


def first_words(witness: str) -> tuple[str, ...]:
    """The words by which causes are distinguished: numbers, and what stands in brackets, differ from cell to cell."""
    return tuple(re.findall(r"[^\W\d]+", re.sub(r"\(.*?\)", "", witness.strip().partition("\n")[0]))[:FIRST_WORDS])


def own_flags(values: Sequence[str]) -> tuple[str, ...]:
    """Values of flags, each without the flags that all have; others, and flags in another order, as they are."""
    if not all(value.startswith("--") for value in values):
        return tuple(values)
    flags = [dict.fromkeys(word for word in value.split() if word != "or") for value in values]
    common = set.intersection(*map(set, flags))
    shown = [" ".join(flag for flag in own if flag not in common) for own in flags]
    return tuple(words or "no other flag" for words in shown) if any(shown) else tuple(values)


def several(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def consecutive(labels: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """The runs of labels with the same word, as `first to last`, with that word."""
    found: list[tuple[str, str, str]] = []
    for label, word in zip(labels, words, strict=True):
        first = found.pop()[0] if found and found[-1][2] == word else label
        found.append((first, label, word))
    return [(first if first == last else f"{first} to {last}", word) for first, last, word in found]


def _in_brackets(counts: Counter[str]) -> str:
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    return f" ({words})" if words else ""
