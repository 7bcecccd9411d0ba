"""A table of cells in columns, which are releases, results or implementations: which cells differ, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .markup import code, grid, text
from .visible import visible

NOT_RUN = "not run"


@dataclass(frozen=True)
class Seen:
    """The outcome of one cell in one column."""

    words: str
    """What happened, without the words that differ from run to run: verdict, anomaly and stage."""
    witness: str = ""
    """Its first line."""

    @staticmethod
    def of(words: str, witness: str) -> Seen:
        return Seen(words, witness.strip().partition("\n")[0][:300])


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
    note: str = ""
    by_chance: bool = False
    """Whether the outcomes are those that a known failure has by chance, so that their difference shows nothing."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(one.words if one else NOT_RUN for one in self.seen)

    @property
    def outcomes(self) -> list[str]:
        """The different outcomes."""
        return list(dict.fromkeys(one.words for one in self.seen if one))


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    of_releases: bool = False
    """Whether the columns are releases, so that neighbours with the same outcome are a period."""
    problems: tuple[str, ...] = ()
    unfinished: str = ""
    """How much has run, if not all has."""

    @property
    def groups(self) -> dict[tuple[str, ...], list[Row]]:
        """The cells that differ, by their outcomes; the largest group first."""
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            if len(row.outcomes) > 1 and not row.by_chance:
                found.setdefault(row.words, []).append(row)
        return dict(sorted(found.items(), key=lambda group: -len(group[1])))

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
            name: tuple(" or ".join(dict.fromkeys(one.get(name, "") for one in info)) for info in infos)
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
        differing = sum(map(len, self.groups.values()))
        alike = [(row.outcomes[0] if row.outcomes else NOT_RUN, row) for row in self.rows if len(row.outcomes) < 2]
        # A cell that ran in one column alone can neither agree nor differ.
        agreeing = Counter(word for word, row in alike if len(row.seen) - row.seen.count(None) > 1)
        alone = Counter(word for word, row in alike) - agreeing
        differ, same = ("changed", "never changed") if self.of_releases else ("differ", "agree")
        column = "release" if self.of_releases else "column"
        columns = several(len(self.columns), column) + " of JAX" * self.of_releases
        chance = f"{len(self.chance)} by chance, " if self.chance else ""
        rest = f"{chance}{agreeing.total()} {same}{_in_brackets(agreeing)}"
        rest += f", {alone.total()} ran in one {column} at most{_in_brackets(alone)}" if alone else ""
        return f"{several(len(self.rows), 'cell')} with {columns}: {differing} {differ}, {rest}."

    def markdown(self) -> str:
        return visible("\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield from (f"# Cells {'by release' if self.of_releases else 'compared'}", "")
        yield text(f"{self.unfinished} {self.summary()}".strip())
        partial = Counter(
            tuple(column.label for column, one in zip(self.columns, row.seen, strict=True) if one)
            for row in self.rows
            if None in row.seen
        )
        if partial:
            wheres = {labels: f"{', '.join(labels)} alone" if labels else "no column" for labels in partial}
            lines = (f"{several(count, 'cell')} ran in {wheres[labels]}" for labels, count in partial.most_common())
            yield from ("", *(f"- {text(line)}" for line in lines))
        if self.problems:
            yield from ("", "## Problems", "", *(f"- {text(problem)}" for problem in self.problems))
        if self.environments:
            yield from ("", "## Environments", "")
            rows = ([text(name), *map(text, values)] for name, values in self.environments.items())
            yield from grid(["", *(text(column.label) for column in self.columns)], rows)
        for words, rows_of_group in self.groups.items():
            yield from ("", f"## {several(len(rows_of_group), 'cell')}: {text(self._pattern(words))}", "")
            yield from (f"- {text(where)}: {text(what)}" for where, what in self.periods(words))
            yield ""
            yield from (f"- {code(row.cell)}{f' ({text(row.note)})' if row.note else ''}" for row in rows_of_group)
            # A witness of each outcome, of the first cell.
            witnesses: dict[str, str] = {}
            for column, one in zip(self.columns, rows_of_group[0].seen, strict=True):
                if one and one.witness:
                    witnesses.setdefault(one.words, f"With {text(column.label)}: {text(one.witness)}")
            for line in witnesses.values():
                yield from ("", line)
        if self.chance:
            yield from ("", f"## {several(len(self.chance), 'cell')} by chance: known to pass in some runs", "")
        for row in self.chance:
            outcomes = ", ".join(f"{word} with {where}" for where, word in self.periods(row.words))
            yield f"- {code(row.cell)}: {text(outcomes)}"

    def _pattern(self, words: Sequence[str]) -> str:
        """The outcomes in one line, each with the columns, or with the release from which it is seen."""
        periods = self.periods(words)
        if not self.of_releases:
            return "; ".join(f"{word} in {where}" for where, word in periods)
        (_, first), *rest = periods
        return ", ".join([first, *(f"{word} from {where.partition(' to ')[0]}" for where, word in rest)])


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
