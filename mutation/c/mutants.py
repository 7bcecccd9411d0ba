"""The mutants of the files in C, each with the lines of Python that lead to the changed function."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..mutant import Mutant, id_of
from .operators import OPERATORS, Change
from .source import blanked, functions

FOLDER = "_native"

CALLERS = {
    "handover.c": ("hostcb_bind",),
    "blocks.c": ("hostcb_share", "hostcb_own"),
    "copying.c": ("hostcb_share", "hostcb_copy"),
}
"""What Python calls where a program meets the functions that the runtime, or another file, calls."""


def mutants_of(package: Path) -> list[Mutant]:
    """All mutants of the files, in the order of their lines."""
    lines = _calls(package)
    return [
        mutant
        for path in sorted((package / FOLDER).glob("*.c"))
        for mutant in mutants_in(path.read_text(), f"{FOLDER}/{path.name}", lines)
    ]


def mutants_in(source: str, module: str, calls: Mapping[str, frozenset[tuple[str, int]]]) -> Iterator[Mutant]:
    """All mutants of one file; `calls` has the lines of Python that call a function of the library."""
    text = blanked(source)
    seen: set[Change] = set()
    alike: Counter[str] = Counter()
    entered = frozenset[tuple[str, int]]().union(*(calls.get(name, ()) for name in CALLERS.get(Path(module).name, ())))
    for function in functions(text):
        for kind, operator in OPERATORS.items():
            for change in operator(text, function):
                if change in seen:
                    continue
                seen.add(change)
                yield _mutant(source, module, function.name, kind, change, calls.get(function.name) or entered, alike)


def _mutant(
    source: str,
    module: str,
    function: str,
    kind: str,
    change: Change,
    callers: frozenset[tuple[str, int]],
    alike: Counter[str],
) -> Mutant:
    start = source.rfind("\n", 0, change.start) + 1
    line = source.count("\n", 0, start) + 1
    before = source[change.start : change.end]
    text = source[start : source.find("\n", start)]
    return Mutant(
        id=id_of(f"{module}:{function}:{kind}", text, before, change.text, alike),
        module=module,
        kind=kind,
        line=line,
        column=change.start - start,
        lines=(line,),
        statement=line,
        before=before,
        after=change.text,
        _text=source.encode(),
        _span=(len(source[: change.start].encode()), len(source[: change.end].encode())),
        callers=callers,
    )


def _calls(package: Path) -> dict[str, frozenset[tuple[str, int]]]:
    """The lines of Python that call each function of the library."""
    found: dict[str, set[tuple[str, int]]] = {}
    for path in sorted(package.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in re.findall(r"\.(hostcb_\w+)\(", line):
                found.setdefault(name, set()).add((path.relative_to(package).as_posix(), number))
    return {name: frozenset(lines) for name, lines in found.items()}
