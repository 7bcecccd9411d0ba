"""A walk over the syntax tree of a module: the nodes that a mutant may change, each with what surrounds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_TEXTS = {"warn", "debug", "info", "warning", "error", "exception", "critical", "log"}
"""Functions whose arguments are a text for people."""

_FOR_TYPES = {"TypeVar", "ParamSpec", "NewType"}

_SHOWN = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Place:
    """A node that may be changed."""

    node: ast.AST
    function: str
    """The dotted name of the function or class around it; empty at the top of a module."""
    statement: ast.stmt
    """The innermost statement around it, or itself."""
    parent: ast.AST


def places(tree: ast.Module) -> Iterator[Place]:
    """All places, in the order of the source.

    Left out are annotations, docstrings, decorators, imports, blocks and overloads for type checkers, the texts of
    errors, warnings and f-strings, and methods that only show an object.
    """
    for statement in tree.body:
        yield from _of_statement(statement, "", tree)


def _of_statement(statement: ast.stmt, function: str, parent: ast.AST) -> Iterator[Place]:
    if isinstance(statement, ast.Import | ast.ImportFrom) or _is_docstring(statement) or _is_for_types(statement):
        return
    if isinstance(statement, ast.If) and _last_name(statement.test) == "TYPE_CHECKING":
        for each in statement.orelse:
            yield from _of_statement(each, function, statement)
        return
    if isinstance(statement, ast.Assign) and any(_name(target) == "__all__" for target in statement.targets):
        return
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if statement.name in _SHOWN:
            return
        inner = f"{function}.{statement.name}".lstrip(".")
        if not isinstance(statement, ast.ClassDef):
            for default in (*statement.args.defaults, *statement.args.kw_defaults):
                if default is not None:
                    yield from _of_expression(default, function, statement, statement)
        for each in statement.body:
            yield from _of_statement(each, inner, statement)
        return
    yield Place(statement, function, statement, parent)
    for child in _children(statement):
        if isinstance(child, ast.stmt):
            yield from _of_statement(child, function, statement)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield Place(child, function, statement, statement)
            for each in child.body:
                yield from _of_statement(each, function, child)
        elif isinstance(child, ast.withitem):
            yield from _of_expression(child.context_expr, function, statement, statement)
        elif isinstance(child, ast.expr):
            yield from _of_expression(child, function, statement, statement)


def _children(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.AnnAssign):
        yield from filter(None, (statement.value,))
    elif isinstance(statement, ast.Raise):
        # The texts of an error are for people; what decides about it is around it.
        return
    else:
        yield from ast.iter_child_nodes(statement)


def _of_expression(node: ast.expr, function: str, statement: ast.stmt, parent: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.JoinedStr) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return
    yield Place(node, function, statement, parent)
    if isinstance(node, ast.Call) and _last_name(node.func) in _TEXTS:
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _of_expression(child, function, statement, node)
        elif isinstance(child, ast.keyword):
            yield Place(child, function, statement, node)
            yield from _of_expression(child.value, function, statement, child)
        elif isinstance(child, ast.comprehension):
            yield from _of_expression(child.iter, function, statement, child)
            for test in child.ifs:
                yield Place(test, function, statement, child)
                yield from _of_expression(test, function, statement, child)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_for_types(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return any(_last_name(decorator) == "overload" for decorator in statement.decorator_list)
    if isinstance(statement, ast.AnnAssign):
        return _last_name(statement.annotation) == "TypeAlias"
    made = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(made, ast.Call) and _last_name(made.func) in _FOR_TYPES


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.AST) -> str:
    """`wait` of `self.event.wait`."""
    return node.attr if isinstance(node, ast.Attribute) else _name(node)
