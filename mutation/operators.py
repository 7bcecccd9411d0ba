"""The usual operators: each takes a place in the source, and gives the texts that could stand there instead."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .walking import Place


@dataclass(frozen=True)
class Edit:
    """Another text in place of a node's."""

    node: ast.AST
    text: str


Text: TypeAlias = Callable[[ast.AST], str]
"""Gives the text of a node in the source."""

Operator: TypeAlias = Callable[[Place, Text], Iterator[Edit]]

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "//",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}

_CANNOT_SWAP = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast", "delattr"}
"""With other arguments each of these only raises."""


def negate_condition(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield Edit(node.test, f"(not ({text(node.test)}))")
    elif isinstance(place.parent, ast.comprehension) and node in place.parent.ifs:
        yield Edit(node, f"(not ({text(node)}))")


def compare(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _COMPARISONS[type(node.ops[0])]
        yield Edit(node, f"({text(node.left)} {other} {text(node.comparators[0])})")


def constant(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and not _is_index(place):
        yield Edit(node, f"({text(node)} + 1)")


def index(place: Place, text: Text) -> Iterator[Edit]:
    """Another element, another dim, another device."""
    node = place.node
    if isinstance(node, ast.Constant) and type(node.value) is int and _is_index(place):
        yield Edit(node, "-1" if node.value == 0 else "0")
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(place.parent, ast.Call | ast.keyword):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name.rpartition("_")[2] in ("dim", "axis", "index", "number", "lane", "place") and node is not _called(
            place
        ):
            yield Edit(node, f"({text(node)} + 1)")


def true_false(place: Place, text: Text) -> Iterator[Edit]:
    del text
    if isinstance(place.node, ast.Constant) and isinstance(place.node.value, bool):
        yield Edit(place.node, str(not place.node.value))


def and_or(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        yield Edit(node, f"({other.join(f'({text(value)})' for value in node.values)})")
        for left_out in range(len(node.values)):
            kept = [value for number, value in enumerate(node.values) if number != left_out]
            word = " and " if isinstance(node.op, ast.And) else " or "
            yield Edit(node, f"({word.join(f'({text(value)})' for value in kept)})")


def arithmetic(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _makes_text(node):
        yield Edit(node, f"(({text(node.left)}) {_ARITHMETIC[type(node.op)]} ({text(node.right)}))")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield Edit(node, f"({text(node.operand)})")


def drop_statement(place: Place, text: Text) -> Iterator[Edit]:
    """A call, a change of an object, `continue` or `break`; a name that nobody has assigned would only raise."""
    del text
    node = place.node
    changes = isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom)
    if changes or calls or isinstance(node, ast.AugAssign | ast.Delete | ast.Continue | ast.Break):
        yield Edit(node, "pass")


def drop_return(place: Place, text: Text) -> Iterator[Edit]:
    """Return nothing; or do not return here."""
    node = place.node
    if isinstance(node, ast.Return) and node.value is not None and text(node.value) != "None":
        yield Edit(node, "return None")
    elif isinstance(node, ast.Return) and isinstance(place.parent, ast.If):
        yield Edit(node, "pass")


def swap_arguments(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if not isinstance(node, ast.Call) or len(node.args) < 2 or _last(node.func) in _CANNOT_SWAP:
        return
    first, second = node.args[:2]
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    if not starred and text(first) != text(second):
        whole, offset = text(node), _offset(node)
        left, right = (slice(*_span(each, offset, whole)) for each in (first, second))
        yield Edit(
            node,
            whole[: left.start] + text(second) + whole[left.stop : right.start] + text(first) + whole[right.stop :],
        )


def reverse_iteration(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.For):
        yield Edit(node.iter, f"reversed([*({text(node.iter)})])")
    elif isinstance(place.parent, ast.comprehension) and node is place.parent.iter:
        yield Edit(node, f"reversed([*({text(node)})])")


def _is_index(place: Place) -> bool:
    parent = place.parent
    return isinstance(parent, ast.Subscript) and parent.slice is place.node


def _called(place: Place) -> ast.AST | None:
    return place.parent.func if isinstance(place.parent, ast.Call) else None


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makes_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _offset(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _span(node: ast.expr, start: tuple[int, int], whole: str) -> tuple[int, int]:
    """Where a node is in the text of one around it, in characters."""
    return _character(node.lineno, node.col_offset, start, whole), _character(
        node.end_lineno or node.lineno, node.end_col_offset or 0, start, whole
    )


def _character(line: int, column: int, start: tuple[int, int], whole: str) -> int:
    lines = whole.splitlines(keepends=True)
    down = line - start[0]
    before = sum(len(each) for each in lines[:down])
    column -= start[1] if down == 0 else 0
    return before + len(lines[down].encode()[:column].decode())


USUAL: dict[str, Operator] = {
    "negate condition": negate_condition,
    "comparison": compare,
    "constant": constant,
    "index": index,
    "true/false": true_false,
    "and/or": and_or,
    "arithmetic": arithmetic,
    "drop statement": drop_statement,
    "drop return": drop_return,
    "swap arguments": swap_arguments,
    "reverse iteration": reverse_iteration,
}
"""By the kind of the mutant."""
