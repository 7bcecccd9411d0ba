"""Known failures of a platform: exact, strict in both directions, each with its reason."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..oracle.verdicts import ExpectationStatus, Outcome, Stage, Verdict, in_words
from ..spec.depths import Depth
from ..spec.errors import CommandError
from ..spec.versions import SpecifierError, version_matches

EXPECTATIONS = Path(__file__).with_name("platforms")
"""The folder with a file of known failures for each platform."""

_REQUIRED = ("cells", "verdict", "reason", "link", "since")
_OPTIONAL = ("stage", "jax", "intermittent")


class ExpectationError(CommandError):
    """An expectation file that cannot be used as it stands."""


@dataclass(frozen=True)
class Expectation:
    """One entry: these cells fail in exactly this way."""

    cells: tuple[str, ...]
    """Globs."""
    verdict: str
    """As `Outcome.label` writes it: `fail`, `crash(SIGABRT)`, `hang`, `unsupported`."""
    reason: str
    link: str
    since: str
    stage: Stage | None = None
    jax: str = ""
    """The versions of JAX for which the entry holds, like ">=0.10.2,<0.12"; all if empty."""
    intermittent: bool = False
    """Whether the cells may also pass, because the failure occurs only in some processes."""
    place: str = field(default="", compare=False)
    """The file, and which of its entries this is."""

    def matches(self, cell_id: str) -> bool:
        """A glob without a depth is about cells that run: what fails there may well be lowered and compiled."""
        return any(_about(pattern, cell_id) for pattern in self.cells)

    def place_of(self, cell_id: str) -> str:
        """Where the entry is to be found and edited."""
        glob = next(pattern for pattern in self.cells if _about(pattern, cell_id))
        return f"{self.place}, about {glob!r}"

    def at(self, depth: Depth) -> Expectation | None:
        """The entry with those globs alone that may match cells of this depth; None if none may."""
        cells = tuple(pattern for pattern in self.cells if _may_be_at(pattern, depth))
        return replace(self, cells=cells) if cells else None

    def of_wrapped(self, implementation: str, base: str, cell_ids: Collection[str]) -> Expectation | None:
        """The same entry about an implementation that is its base with something around it; None without such cells."""
        renamed = (
            f"{implementation}/{glob.removeprefix(f'{base}/')}" for glob in self.cells if glob.startswith(f"{base}/")
        )
        cells = tuple(glob for glob in renamed if any(_about(glob, cell_id) for cell_id in cell_ids))
        return replace(self, cells=cells) if cells else None

    def as_toml(self) -> str:
        fields: dict[str, Any] = {"cells": list(self.cells), "verdict": self.verdict}
        fields |= {"stage": self.stage.value} if self.stage else {}
        fields |= {"reason": self.reason, "link": self.link, "since": self.since}
        fields |= {"jax": self.jax} if self.jax else {}
        fields |= {"intermittent": True} if self.intermittent else {}
        return toml_of(fields)

    def met_by(self, outcome: Outcome) -> bool:
        return self.verdict == outcome.label and self.stage in (None, outcome.stage)

    @property
    def report(self) -> list[str]:
        """Lines with the report of the failure, and the program of its page."""
        program = Path(self.link).with_suffix(".py")
        there = (Path(__file__).parents[2] / program).is_file()
        return [
            f"known{' to fail by chance' if self.intermittent else ''}: {self.link}",
            *([f"the program of that page: {program}"] if there else []),
        ]


@dataclass(frozen=True)
class Expectations:
    entries: tuple[Expectation, ...] = ()
    _found: dict[str, Expectation | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The entries of the cells that were asked about: a run asks several times about each."""

    def applicable(self, jax_version: str) -> Expectations:
        return Expectations(tuple(entry for entry in self.entries if version_matches(jax_version, entry.jax)))

    def of_wrapped(self, bases: Mapping[str, str], cell_ids: Collection[str]) -> tuple[Expectation, ...]:
        """The entries about these cells of implementations that have a base, from those about their bases."""
        found = (entry.of_wrapped(name, base, cell_ids) for name, base in bases.items() for entry in self.entries)
        return tuple(entry for entry in found if entry)

    def at(self, depth: Depth) -> Expectations:
        """The entries about cells of this depth."""
        return Expectations(tuple(found for entry in self.entries if (found := entry.at(depth))))

    def of(self, cell_id: str) -> Expectation | None:
        if cell_id not in self._found:
            self._found[cell_id] = next((entry for entry in self.entries if entry.matches(cell_id)), None)
        return self._found[cell_id]

    def explaining(self, cell_id: str, jax_version: str, words: str) -> Expectation | None:
        """The entry about an outcome in these words, which may lack the stage of a crash."""
        for entry in self.applicable(jax_version).entries:
            stage = entry.stage.value if entry.stage and " at " in words else ""
            met = f"{words} ".startswith(f"{in_words(entry.verdict, stage, '')} ")
            if entry.matches(cell_id) and (met or (entry.intermittent and words == Verdict.PASS.value)):
                return entry
        return None

    def status(self, cell_id: str, outcome: Outcome) -> ExpectationStatus:
        entry = self.of(cell_id)
        passed = outcome.verdict is Verdict.PASS
        if entry is None:
            return ExpectationStatus.AS_EXPECTED if passed else ExpectationStatus.UNEXPECTED
        if passed:
            return ExpectationStatus.AS_EXPECTED if entry.intermittent else ExpectationStatus.UNEXPECTED_PASS
        return ExpectationStatus.KNOWN_FAILURE if entry.met_by(outcome) else ExpectationStatus.CHANGED_FAILURE

    def unmatched(self, planned: Sequence[str]) -> tuple[str, ...]:
        """Globs that match no planned cell: typing errors, or cells that are gone."""
        globs = [pattern for entry in self.entries for pattern in entry.cells]
        return tuple(pattern for pattern in globs if not any(_about(pattern, cell_id) for cell_id in planned))


def toml_of(fields: Mapping[str, Any]) -> str:
    """An entry as a file has it: its values are texts, lists of texts, or true."""
    return "\n".join(["[[expect]]", *(f"{key} = {_toml(value)}" for key, value in fields.items()), ""])


def _toml(value: str | Sequence[str] | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return "\n".join(["[", *(f"  {_toml(each)}," for each in value), "]"])
    # As JSON has it for most texts, but not for characters of more than 16 bits.
    characters = (one if one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in value)
    return f'"{"".join(characters)}"'


def _about(pattern: str, cell_id: str) -> bool:
    return ("@" in cell_id) == ("@" in pattern) and fnmatch.fnmatchcase(cell_id, pattern)


def _may_be_at(pattern: str, depth: Depth) -> bool:
    _, at, depths = pattern.partition("@")
    if depth is Depth.RUN:
        return not at
    return bool(at) and fnmatch.fnmatchcase(depth.value, depths)


def load_expectations(path: Path) -> Expectations:
    """Read a platform's file; a platform without one has no known failures."""
    name = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    expectations = Expectations(read_entries(path.read_text(), str(name))) if path.exists() else Expectations()
    # `expect` prints entries without them: only a person knows the reason of a failure.
    if empty := [entry for entry in expectations.entries if not (entry.reason.strip() and entry.link.strip())]:
        places = "; ".join(f"{entry.place.removeprefix(f'{name}, ')}, about {entry.cells[0]!r}" for entry in empty)
        raise ExpectationError(f"{name}: say in 'reason' why it fails, and in 'link' the issue about it: {places}")
    return expectations


def read_entries(text: str, name: str) -> tuple[Expectation, ...]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExpectationError(f"{name} is not TOML: {error}") from error
    # A mistyped key would otherwise mean that no failure is known.
    if unknown := sorted(found.keys() - {"expect"}):
        raise ExpectationError(f"{name}: unknown key {unknown[0]!r}; every entry begins with [[expect]]")
    tables = found.get("expect", [])
    if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
        raise ExpectationError(f"{name}: 'expect' is no list of tables; every entry begins with [[expect]]")
    return tuple(_entry(f"{name}, entry {number}", table) for number, table in enumerate(tables, 1))


def _entry(where: str, table: dict[str, Any]) -> Expectation:
    if missing := [key for key in _REQUIRED if key not in table]:
        raise ExpectationError(f"{where}: {missing[0]!r} is missing; every entry states it")
    if unknown := sorted(table.keys() - {*_REQUIRED, *_OPTIONAL}):
        raise ExpectationError(f"{where}: unknown key {unknown[0]!r}")
    cells = table["cells"] if isinstance(table["cells"], list) else [table["cells"]]
    if not cells or not all(isinstance(pattern, str) and pattern for pattern in cells):
        raise ExpectationError(
            f"{where}: 'cells' is the id of a cell, or a glob, or a list of them, not {table['cells']!r}"
        )
    for key in table.keys() - {"cells", "intermittent", "since"}:
        if not isinstance(table[key], str):
            raise ExpectationError(f"{where}: {key!r} is a text in quotes, not {table[key]!r}")
    named = (("verdict", Verdict, table["verdict"].partition("(")[0]), ("stage", Stage, table.get("stage")))
    for key, kind, name in named:
        names = [each.value for each in kind]
        if name is not None and name not in names:
            raise ExpectationError(f"{where}: {table[key]!r} is no {key}; there are {', '.join(names)}")
    if not isinstance(table.get("intermittent", False), bool):
        raise ExpectationError(f"{where}: 'intermittent' is true or false")
    jax = table.get("jax", "")
    try:
        version_matches("0", jax)
    except SpecifierError as error:
        raise ExpectationError(f"{where}: 'jax': {error}") from error
    return Expectation(
        tuple(cells),
        **{key: str(table[key]) for key in _REQUIRED if key != "cells"},
        stage=Stage(table["stage"]) if "stage" in table else None,
        jax=jax,
        intermittent=table.get("intermittent", False),
        place=where,
    )
