"""A mutant: one change of one module, with an id that stays while the line and its function do."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .c import building
from .field_operators import OPERATORS
from .operators import Edit
from .walking import Place, places


@dataclass(frozen=True)
class Mutant:
    id: str
    """Module, function, kind and a hash of the line's text and the change: an edit elsewhere does not change it."""
    module: str
    """The path of the source in the package: `_runtime/queue/queues.py`."""
    kind: str
    line: int
    column: int
    lines: tuple[int, ...]
    """The lines of the changed text. Python reports some of them alone, and others as those of their statement."""
    statement: int
    """The first line of the statement."""
    before: str
    after: str
    _text: bytes = field(repr=False, compare=False)
    _span: tuple[int, int] = field(repr=False, compare=False)
    """The first byte of the changed text, and the one after its last."""
    callers: frozenset[tuple[str, int]] = frozenset()
    """Of a function in C: the modules and lines of Python that lead to it."""

    @property
    def source(self) -> str:
        """The whole module with the change."""
        start, end = self._span
        return (self._text[:start] + self.after.encode() + self._text[end:]).decode()

    @property
    def can_be_compiled(self) -> bool:
        """Whether the change is still Python, or C: an operator knows the syntax of its place alone."""
        if building.is_c(self.module):
            return building.compiles(self.source, self.module)
        try:
            compile(self.source, self.module, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    @property
    def diff(self) -> str:
        """The change in one line."""
        return f"{self.module}:{self.line}:{self.column} {self.kind}: {flat(self.before)} → {flat(self.after)}"


def mutants_of(package: Path) -> list[Mutant]:
    """All mutants of the modules in Python of a package, in the order of the modules and their lines."""
    return [
        mutant
        for path in sorted(package.rglob("*.py"))
        for mutant in mutants_in(path.read_text(), path.relative_to(package).as_posix())
    ]


def mutants_in(source: str, module: str) -> Iterator[Mutant]:
    """All mutants of one module; of those with the same text, the first."""
    text = Source(source)
    seen: set[tuple[int, int, str]] = set()
    alike: Counter[str] = Counter()
    for place in places(ast.parse(source)):
        for kind, operator in OPERATORS.items():
            for edit in operator(place, text):
                change = (*text.span(edit.node), edit.text)
                if change not in seen:
                    seen.add(change)
                    yield _mutant(place, kind, edit, module, text, alike)


def id_of(where: str, line: str, before: str, after: str, alike: Counter[str]) -> str:
    """The id of a change of a line; `alike` counts how often each occurred."""
    words = "\n".join((line.strip(), flat(before), flat(after)))
    key = f"{where}:{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    alike[key] += 1
    # Equal lines of one function, with the same change, are distinguished by their order.
    return key if alike[key] == 1 else f"{key}:{alike[key]}"


def _mutant(place: Place, kind: str, edit: Edit, module: str, text: Source, alike: Counter[str]) -> Mutant:
    line, column = edit.node.lineno, edit.node.col_offset  # type: ignore[attr-defined]
    before = text(edit.node)
    return Mutant(
        id=id_of(f"{module}:{place.function or '<module>'}:{kind}", text.line(line), before, edit.text, alike),
        module=module,
        kind=kind,
        line=line,
        column=column,
        lines=_lines_of(edit),
        statement=place.statement.lineno,
        before=before,
        after=edit.text,
        _text=text.encoded,
        _span=text.span(edit.node),
    )


def _lines_of(edit: Edit) -> tuple[int, ...]:
    first, last = edit.node.lineno, edit.node.end_lineno  # type: ignore[attr-defined]
    # Of a block, the first line says that it is reached.
    return (first,) if isinstance(edit.node, ast.stmt) else tuple(range(first, last + 1))


class Source:
    """The text of the nodes of a module; the syntax tree counts columns in bytes."""

    def __init__(self, source: str) -> None:
        self.encoded = source.encode()
        self._lines = self.encoded.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def __call__(self, node: ast.AST) -> str:
        return self.encoded[slice(*self.span(node))].decode()

    def line(self, number: int) -> str:
        return self._lines[number - 1].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node, and the one after its last."""
        line, column, end_line, end_column = (
            getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        )
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column


def flat(text: str) -> str:
    return " ".join(text.split())
