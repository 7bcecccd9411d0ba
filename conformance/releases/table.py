"""Cells by release: which changed, how, and since when. Only records are read here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..oracle.verdicts import Outcome, Verdict
from .records import Record
from .release import Release, Skipped

NOT_RUN = "not run"


def said(outcome: Outcome) -> str:
    """What happened, without the words that differ from run to run: verdict, anomaly and stage."""
    anomaly = "" if outcome.verdict is Verdict.PASS else outcome.anomaly
    details = ", ".join(filter(None, (anomaly, outcome.stage.value if outcome.stage else "")))
    return f"{outcome.label} ({details})" if details else outcome.label


@dataclass(frozen=True)
class Row:
    """A cell with all releases."""

    cell: str
    outcomes: tuple[tuple[Outcome, ...], ...]
    """The runs with each release, in the order of the releases."""

    @property
    def words(self) -> tuple[str, ...]:
        """What happened with each release; several outcomes of one release are separated by "or"."""
        return tuple(" or ".join(sorted({said(outcome) for outcome in runs})) or NOT_RUN for runs in self.outcomes)

    @property
    def counts(self) -> tuple[str, ...]:
        """The same with numbers, where the runs with one release differ."""
        return tuple(
            word if " or " not in word else ", ".join(f"{n} x {what}" for what, n in _counted(runs))
            for word, runs in zip(self.words, self.outcomes, strict=True)
        )

    @property
    def changed(self) -> bool:
        """Whether two releases differ, or two runs with one release."""
        known = {word for word in self.words if word != NOT_RUN}
        return len(known) > 1 or any(" or " in word for word in known)


def several(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _counted(runs: Sequence[Outcome]) -> list[tuple[str, int]]:
    return Counter(sorted(said(outcome) for outcome in runs)).most_common()


@dataclass(frozen=True)
class Group:
    """Cells that changed in the same way, at the same releases."""

    words: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    releases: tuple[Release, ...]
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The cells that changed, by the pattern of their outcomes; the largest group first."""
        by_words: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            if row.changed:
                by_words.setdefault(row.words, []).append(row)
        groups = [Group(words, tuple(rows)) for words, rows in by_words.items()]
        return tuple(sorted(groups, key=lambda group: -len(group.rows)))

    @property
    def unchanged(self) -> Counter[str]:
        """The number of the other cells, by their outcome with all releases."""
        counter: Counter[str] = Counter()
        for row in self.rows:
            if not row.changed:
                counter.update({next((word for word in row.words if word != NOT_RUN), NOT_RUN)})
        return counter

    def periods(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Consecutive releases with the same outcome, in words, with that outcome."""
        start = 0
        for end in range(1, len(words) + 1):
            if end == len(words) or words[end] != words[start]:
                first, last = self.releases[start].label, self.releases[end - 1].label
                yield (first if start == end - 1 else f"{first} to {last}"), words[start]
                start = end

    def summary(self) -> str:
        changed = sum(len(group.rows) for group in self.groups)
        same = ", ".join(f"{count} {word}" for word, count in self.unchanged.most_common())
        rest = f"{len(self.rows) - changed} never changed" + (f" ({same})" if same else "")
        cells, releases = several(len(self.rows), "cell"), several(len(self.releases), "release")
        return f"{cells} with {releases} of JAX: {changed} changed, {rest}."


def table_of(
    records: Sequence[Record],
    releases: Sequence[Release],
    cells: Sequence[str],
    skipped: Sequence[Skipped] = (),
    problems: Sequence[str] = (),
) -> Table:
    found: dict[tuple[Release, str], list[Outcome]] = {}
    for record in records:
        found.setdefault((record.release, record.cell), []).append(record.outcome)
    tried = [release for release in sorted(releases) if any(record.release == release for record in records)]
    rows = [Row(cell, tuple(tuple(found.get((release, cell), ())) for release in tried)) for cell in cells]
    return Table(tuple(tried), tuple(rows), tuple(skipped), tuple(problems))
