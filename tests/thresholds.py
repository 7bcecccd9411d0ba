"""The numbers in hostcb's source: uppercase constants of Python and C whose value is a number.

The source is read and not imported, so a constant counts wherever it stands.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "hostcb"

_OPERATORS = {
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv,
}
_DEFINED = re.compile(r"^#define\s+([A-Z][A-Z0-9_]*)\s+\(?(\d+u?(?:\s*<<\s*\d+)?)\)?\s*(?:/\*.*)?$", re.MULTILINE)


def numbers() -> dict[str, float]:
    """Each constant as `folder/file.py:NAME`, with its value."""
    found: dict[str, float] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found.update({f"{name}:{constant}": value for constant, value in of_python(path.read_text("utf-8"))})
    for path in sorted(SOURCE.rglob("*.[ch]")):
        name = path.relative_to(SOURCE).as_posix()
        found.update({f"{name}:{constant}": value for constant, value in of_c(path.read_text("utf-8"))})
    return found


def of_python(text: str) -> Iterator[tuple[str, float]]:
    known: dict[str, float] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            known.update({each.asname or each.name: 0 for each in node.names if each.name.isupper()})
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _is_annotated(node) else []
        value = None if not targets else _value(node.value, known)  # type: ignore[attr-defined]
        for target in targets:
            if value is not None and isinstance(target, ast.Name) and target.id.strip("_").isupper():
                known[target.id] = value
                yield target.id, value


def of_c(text: str) -> Iterator[tuple[str, float]]:
    for name, value in _DEFINED.findall(text):
        left, _, right = value.partition("<<")
        yield name, int(left.strip().rstrip("u")) << int(right or 0)


def _is_annotated(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None


def _value(node: ast.expr, known: dict[str, float]) -> float | None:
    """The number that an expression of numbers, and of constants known here, stands for."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) in (int, float) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, known), _value(node.right, known)
        return None if left is None or right is None else _OPERATORS[type(node.op)](left, right)
    return None
