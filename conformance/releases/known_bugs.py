"""The list of reported bugs that tell releases apart, and what their cells show with each release."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..oracle.verdicts import Outcome, Verdict
from ..reports.table import NOT_RUN
from ..spec.versions import version_key
from .release import Release, ReleaseError
from .table import Outcomes, tried

BAD, GOOD, UNSUPPORTED, OTHERWISE = "bad", "good", "unsupported", "failing in another way"
NOT_TOLD = "not told"
"""The suite itself has failed, or says nothing definite: the release is neither bad nor good."""

_TELLING_NOTHING = (Verdict.HARNESS_ERROR, Verdict.MISSING, Verdict.FLAKE)

_KEYS: Mapping[str, type] = {
    **dict.fromkeys(("id", "symptom", "link", "without_cells", "anomaly", "deviation"), str),
    **dict.fromkeys(("bad", "good", "cells"), list),
    "refused": bool,
}
_WORDS = {str: "a string", list: "a list of strings", bool: "true or false"}


@dataclass(frozen=True)
class Range:
    """Releases from one to another, with both ends; an end may be open."""

    words: str

    @staticmethod
    def parse(words: str) -> Range:
        keys = [version_key(end) for end in words.partition("..")[::2] if end]
        if not keys or keys != sorted(keys):
            raise ValueError(f"{words!r} is no range of releases like 0.4.31..0.6.1")
        return Range(words)

    def __contains__(self, version: str) -> bool:
        first, dots, last = self.words.partition("..")
        key = version_key(version)
        if not dots:
            return key == version_key(first)
        return (not first or version_key(first) <= key) and (not last or key <= version_key(last))

    def __str__(self) -> str:
        first, dots, last = self.words.partition("..")
        if not dots:
            return first
        return f"{first} to {last}" if first and last else f"{first} and newer" if first else f"{last} and older"


@dataclass(frozen=True)
class Bug:
    id: str
    symptom: str
    link: str = ""
    bad: tuple[Range, ...] = ()
    """The releases that were found to have the bug before."""
    good: tuple[Range, ...] = ()
    cells: tuple[str, ...] = ()
    """They fail where the bug is."""
    without_cells: str = ""
    """The reason if no cell shows the bug."""
    anomaly: str = ""
    """The kind of the failure, if another kind is not this bug."""
    refused: bool = False
    """Whether `unsupported` is the symptom, too."""
    deviation: str = ""
    """The explanation of what differs."""

    def said(self, version: str) -> str:
        """What was found before of a release; empty if nothing was."""
        if any(version in one for one in self.bad):
            return BAD
        return GOOD if any(version in one for one in self.good) else ""

    def found(self, release: Release, outcomes: Outcomes) -> str:
        """What the cells show of a release: that it is bad, if one of them does in one of its runs."""
        runs = [outcome for cell in self.cells for outcome in outcomes.get((release, cell), ())]
        states = {self._state(outcome) for outcome in runs}
        return next((state for state in (BAD, OTHERWISE, UNSUPPORTED, NOT_TOLD, GOOD) if state in states), NOT_RUN)

    def _state(self, outcome: Outcome) -> str:
        if outcome.verdict is Verdict.PASS:
            return GOOD
        if outcome.verdict in _TELLING_NOTHING:
            return NOT_TOLD
        if outcome.verdict is Verdict.UNSUPPORTED:
            return BAD if self.refused else UNSUPPORTED
        return BAD if self.anomaly in ("", outcome.anomaly) else OTHERWISE

    def differences(self, releases: Sequence[Release], outcomes: Outcomes) -> Iterator[tuple[Release, str, str]]:
        """The releases of which the cells show something else than what was said: with what was said, and is found."""
        for release in releases:
            said, found = self.said(release.jax), self.found(release, outcomes)
            if self.cells and said and found not in (said, NOT_TOLD):
                yield release, said, found

    def not_told(self, releases: Sequence[Release], outcomes: Outcomes) -> tuple[str, ...]:
        """The releases of which the cells show nothing, because the suite failed."""
        return tuple(release.label for release in releases if self.found(release, outcomes) == NOT_TOLD)


@dataclass(frozen=True)
class KnownBugs:
    releases: tuple[str, ...]
    """Those with which the page is made."""
    bugs: tuple[Bug, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell for bug in self.bugs for cell in bug.cells))

    def problems(self, outcomes: Outcomes) -> Iterator[str]:
        """Differences without an explanation, and explanations without a difference, strictly both ways."""
        releases = tried(outcomes)
        all_tried = {*self.releases} <= {release.jax for release in releases}
        for bug in self.bugs:
            differences = list(bug.differences(releases, outcomes))
            if differences and not bug.deviation:
                release, said, found = differences[0]
                yield f"{bug.id}: JAX {release.label} is {found}, not {said}: explain that as its 'deviation'"
            if not_told := bug.not_told(releases, outcomes):
                yield f"{bug.id}: JAX {', '.join(not_told)} is {NOT_TOLD}: the suite failed there; run the cells again"
            elif bug.deviation and bug.cells and not differences and all_tried:
                yield f"{bug.id}: its 'deviation' explains what does not differ"


def load_known_bugs(file: Path) -> KnownBugs:
    try:
        data = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{file} is not TOML: {error}") from error
    except OSError as error:
        raise ReleaseError(f"{file} cannot be read: {error.strerror}") from error
    tables, releases = data.get("bug"), data.get("releases", [])
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise ReleaseError(f"{file} has no [[bug]]: write each bug as a table that begins so")
    _check_value(f"{file}", "releases", releases, list)
    return KnownBugs(tuple(releases), tuple(_bug(f"{file}, bug {n}", table) for n, table in enumerate(tables, 1)))


def _bug(where: str, table: dict[str, Any]) -> Bug:
    _check(where, table)
    if missing := [key for key in ("id", "symptom") if not table.get(key)]:
        raise ReleaseError(f"{where}: {missing[0]!r} is missing; every bug states it")
    if bool(table.get("cells")) == bool(table.get("without_cells")):
        raise ReleaseError(f"{where}: name its 'cells', or say in 'without_cells' why there are none")
    lists = {key: tuple(table.get(key, ())) for key in ("bad", "good", "cells")}
    try:
        ranges = {key: tuple(map(Range.parse, lists[key])) for key in ("bad", "good")}
    except ValueError as error:
        raise ReleaseError(f"{where}: {error}") from error
    return Bug(**table | lists | ranges)


def _check(where: str, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key not in _KEYS:
            raise ReleaseError(f"{where}: unknown key {key!r}; there are {', '.join(_KEYS)}")
        _check_value(where, key, value, _KEYS[key])


def _check_value(where: str, key: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
        raise ReleaseError(f"{where}: {key!r} is {str(value)[:40]!r}; write {_WORDS[kind]}")
