"""Which cells and tests reach which lines of hostcb, and in what time: a file of JSON lines, one for each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .mutant import Mutant
from .overlay import PROJECT

IMPORT = "import"
"""In place of an id: what the import of hostcb runs, in every process."""

ROOT = "__init__.py"
"""Its lines run at the import alone: what has reached them has started a process of its own."""


@dataclass(frozen=True)
class Reached:
    """What one cell or test has reached, without the lines of the import."""

    id: str
    seconds: float
    lines: Mapping[str, frozenset[int]]
    """By module."""

    def reaches(self, module: str, lines: Iterable[int]) -> bool:
        return not self.lines.get(module, frozenset()).isdisjoint(lines)

    def with_(self, other: Reached) -> Reached:
        """What both have reached: processes of some platforms import more."""
        none: frozenset[int] = frozenset()
        modules = self.lines.keys() | other.lines.keys()
        both = {each: self.lines.get(each, none) | other.lines.get(each, none) for each in modules}
        return Reached(self.id, self.seconds + other.seconds, both)

    def without(self, other: Reached) -> Reached:
        none: frozenset[int] = frozenset()
        kept = {module: lines - other.lines.get(module, none) for module, lines in self.lines.items()}
        return Reached(self.id, self.seconds, {module: lines for module, lines in kept.items() if lines})

    def as_json(self) -> dict[str, Any]:
        written = {module: _ranges(lines) for module, lines in self.lines.items()}
        return {"id": self.id, "seconds": round(self.seconds, 3), "lines": written}

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> Reached:
        lines = {module: frozenset(_numbers(written)) for module, written in line["lines"].items()}
        return Reached(line["id"], line["seconds"], lines)


@dataclass
class Coverage:
    reached: dict[str, Reached] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """The cells and tests that do not pass with the unchanged source, and why: they show nothing about a mutant."""
    files: dict[str, str] = field(default_factory=dict)
    """The files whose tests are recorded, each with a hash of its text."""

    def reaching(self, mutant: Mutant) -> list[Reached]:
        """The cells and tests that reach the changed lines; if none does, those that reach its statement.

        Lines that run at import matter for all; then those count that reach the module.
        """
        pool = [one for name, one in self.reached.items() if name != IMPORT]
        if mutant.callers:
            return [one for one in pool if any(one.reaches(module, (line,)) for module, line in mutant.callers)]
        for lines in (mutant.lines, (mutant.statement,)):
            if found := [one for one in pool if one.reaches(mutant.module, lines)]:
                return found
        at_import = self.reached.get(IMPORT)
        if at_import is None or not at_import.reaches(mutant.module, (*mutant.lines, mutant.statement)):
            return []
        in_module = [one for one in pool if one.lines.get(mutant.module)]
        return in_module or pool


class StaleCoverageError(Exception):
    """The record is of another source."""


def fingerprint(package: Path) -> str:
    """A hash of the sources of a package."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def hash_of(file: str) -> str:
    """A hash of a file of tests: once they change, they are recorded again."""
    return hashlib.sha256((PROJECT / file).read_bytes()).hexdigest()[:16]


def load(path: Path, package: Path) -> Coverage:
    """The record of this source; empty if there is no file."""
    coverage = Coverage()
    if not path.exists():
        return coverage
    header, *lines = map(json.loads, path.read_text().splitlines())
    if header["source"] != fingerprint(package):
        raise StaleCoverageError(f"{path} is of another source of {package.name}: remove it, and record again")
    for line in lines:
        if "file" in line:
            coverage.files[line["file"]] = line["hash"]
        elif "left_out" in line:
            coverage.left_out[line["id"]] = line["left_out"]
        else:
            found = Reached.from_json(line)
            earlier = coverage.reached.get(IMPORT) if found.id == IMPORT else None
            coverage.reached[found.id] = found.with_(earlier) if earlier else found
    if at_import := coverage.reached.get(IMPORT):
        for name, one in coverage.reached.items():
            if name != IMPORT and ROOT in one.lines:
                coverage.reached[name] = one.without(at_import)
    return coverage


def read_lines(folder: Path) -> dict[str, dict[str, set[int]]]:
    """What the processes of one recording have written, by the id of a cell or a test, and by module."""
    found: dict[str, dict[str, set[int]]] = {}
    for path in folder.glob("*.lines"):
        name = IMPORT
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("@"):
                name = line[1:]
            elif ":" in line:
                module, _, number = line.rpartition(":")
                found.setdefault(name, {}).setdefault(module, set()).add(int(number))
    return found


def _ranges(lines: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][1] + 1:
            parts[-1][1] = line
        else:
            parts.append([line, line])
    return " ".join(f"{first}-{last}" if first != last else str(first) for first, last in parts)


def _numbers(written: str) -> Iterable[int]:
    for part in written.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
