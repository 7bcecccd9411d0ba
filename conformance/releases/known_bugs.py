"""The list of reported bugs that tell releases apart, and what their cells show with each release."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..oracle.verdicts import Outcome, Verdict
from ..reports.table import NOT_RUN
from ..spec.errors import CommandError
from ..spec.versions import version_key
from .records import Record
from .release import Release

BAD, GOOD, UNSUPPORTED, OTHERWISE = "bad", "good", "unsupported", "failing in another way"
NOT_TOLD = "not told"
"""The suite itself has failed, or says nothing definite: the release is neither bad nor good."""

_TELLING_NOTHING = (Verdict.HARNESS_ERROR, Verdict.MISSING, Verdict.FLAKE)

Outcomes: TypeAlias = Mapping[tuple[Release, str], Sequence[Outcome]]

_TEXTS = ("id", "symptom", "link", "without_cells", "anomaly", "deviation")
_LISTS = ("bad", "good", "cells")
_KEYS = ("id", "symptom", "link", "bad", "good", "cells", "without_cells", "anomaly", "refused", "deviation")


class KnownBugsError(CommandError):
    """An invalid list of bugs. The text is one line for users."""


@dataclass(frozen=True)
class Range:
    """Releases from one to another, with both ends; an end may be open."""

    words: str

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

    def problems(self, releases: Sequence[Release], outcomes: Outcomes) -> Iterator[str]:
        """Differences without an explanation, and explanations without a difference, strictly both ways."""
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


def outcomes_of(records: Sequence[Record]) -> Outcomes:
    outcomes: dict[tuple[Release, str], list[Outcome]] = {}
    for record in records:
        outcomes.setdefault((record.release, record.cell), []).append(record.outcome)
    return outcomes


def load_known_bugs(file: Path) -> KnownBugs:
    try:
        data = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KnownBugsError(f"{file} is not TOML: {error}") from error
    except OSError as error:
        raise KnownBugsError(
            f"{file} cannot be read: {error.strerror}. Run this in the root of a checkout, or name a list with --list."
        ) from error
    tables = data.get("bug", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise KnownBugsError(f"{file}: 'bug' is {_kind(tables)}; write each bug as a table that begins with [[bug]]")
    bugs = tuple(_bug(f"{file}, bug {number}", table) for number, table in enumerate(tables, 1))
    if not bugs:
        raise KnownBugsError(f"{file} has no [[bug]]")
    releases = data.get("releases", [])
    _check_list(str(file), "releases", releases)
    return KnownBugs(tuple(releases), bugs)


def _bug(where: str, table: dict[str, Any]) -> Bug:
    _check_types(where, table)
    if unknown := sorted(table.keys() - {*_KEYS}):
        raise KnownBugsError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(_KEYS)}")
    if missing := [key for key in ("id", "symptom") if not table.get(key)]:
        raise KnownBugsError(f"{where}: {missing[0]!r} is missing; every bug states it")
    if bool(table.get("cells")) == bool(table.get("without_cells")):
        raise KnownBugsError(f"{where}: name its 'cells', or say in 'without_cells' why there are none")
    for key in _LISTS:
        table[key] = tuple(table.get(key, ()))
    for words in (*table["bad"], *table["good"]):
        _check_range(where, words)
    return Bug(**table | {key: tuple(map(Range, table[key])) for key in ("bad", "good")})


def _check_types(where: str, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key in _TEXTS and not isinstance(value, str):
            raise KnownBugsError(f"{where}: {key!r} is {_kind(value)}; write a string")
        if key == "refused" and not isinstance(value, bool):
            raise KnownBugsError(f"{where}: 'refused' is {_kind(value)}; write true or false")
        if key in _LISTS:
            _check_list(where, key, value)


def _check_list(where: str, key: str, value: object) -> None:
    if not isinstance(value, list):
        raise KnownBugsError(f"{where}: {key!r} is {_kind(value)}; write a list of strings")
    if wrong := [one for one in value if not isinstance(one, str)]:
        raise KnownBugsError(f"{where}: {key!r} holds {_kind(wrong[0])}; write a list of strings")


def _kind(value: object) -> str:
    """What TOML calls a value, with the value itself if it is short."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a table"}
    words = kinds.get(type(value), "a date or a time")
    return words if isinstance(value, list | dict) else f"{words}, {str(value)[:40]!r}"


def _check_range(where: str, words: str) -> None:
    ends = [end for end in words.partition("..")[::2] if end]
    try:
        keys = [version_key(end) for end in ends]
    except ValueError as error:
        raise KnownBugsError(f"{where}: {error}") from error
    if not keys or keys != sorted(keys):
        raise KnownBugsError(f"{where}: {words!r} is no range of releases like 0.4.31..0.6.1")
