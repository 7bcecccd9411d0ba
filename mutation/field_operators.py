"""The operators of the field: the slips that a library of callbacks makes, such as a copy or a wait that is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .operators import USUAL, Edit, Operator, Text
from .walking import Place

_COPIES = re.compile(r"copy|copied|array$|asarray|ascontiguous|tobytes")
_WAITS = re.compile(r"wait|join|block|barrier|acquire|synchron|sleep|settle|ready")
_LOCKS = re.compile(r"lock|release|baton|hold")
_EFFECTS = re.compile(r"effect|token|ordered")
_MAKES_NEW = {"list", "tuple", "dict", "set", "frozenset", "bytes"}


def drop_copy(place: Place, text: Text) -> Iterator[Edit]:
    """`x` in place of `x.copy()`, `np.array(x)` and `list(x)`; a `copyto` that is missing."""
    node = place.node
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _COPIES.search(_callee(node.value)):
        yield Edit(node, "pass")
    if not isinstance(node, ast.Call) or isinstance(place.parent, ast.Expr):
        return
    name = _callee(node)
    if name == "copy" and isinstance(node.func, ast.Attribute) and not node.args:
        yield Edit(node, f"({text(node.func.value)})")
    elif node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        makes_new = isinstance(node.func, ast.Name) and name in _MAKES_NEW and not node.keywords
        if makes_new or _COPIES.search(name):
            yield Edit(node, f"({text(node.args[0])})")


def drop_wait(place: Place, text: Text) -> Iterator[Edit]:
    del text
    node = place.node
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _WAITS.search(_callee(node.value)):
        yield Edit(node, "pass")


def drop_lock(place: Place, text: Text) -> Iterator[Edit]:
    """The body of a `with` without it, and a lock that is not released."""
    node = place.node
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        first, last = node.items[0].context_expr, node.items[-1].context_expr
        lines = text(node).splitlines()
        head = (last.end_lineno or last.lineno) - node.lineno + 1
        if first.lineno == node.lineno and len(lines) > head:
            yield Edit(node, "\n".join(("if True:", *lines[head:])))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _LOCKS.search(_callee(node.value)):
        yield Edit(node, "pass")


def drop_check(place: Place, text: Text) -> Iterator[Edit]:
    """A mistake that is no longer refused."""
    node = place.node
    if isinstance(node, ast.If) and any(isinstance(each, ast.Raise) for each in node.body):
        yield Edit(node.test, f"(False and ({text(node.test)}))")
    elif isinstance(node, ast.Assert) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and re.search("check|refuse|raise|require", _callee(node.value))
    ):
        yield Edit(node, "pass")


def drop_branch(place: Place, text: Text) -> Iterator[Edit]:
    """An arm that is never taken, or always."""
    node = place.node
    if isinstance(node, ast.If | ast.IfExp):
        yield Edit(node.test, f"(False and ({text(node.test)}))")
        yield Edit(node.test, f"(True or ({text(node.test)}))")
    elif isinstance(node, ast.While) and text(node.test) != "True":
        yield Edit(node.test, f"(False and ({text(node.test)}))")


def drop_effect(place: Place, text: Text) -> Iterator[Edit]:
    """An effect, a token or an order that is not passed on."""
    node = place.node
    if isinstance(node, ast.keyword) and node.arg and _EFFECTS.search(node.arg):
        yield from _without_keyword(place, node, text)
    elif isinstance(node, ast.Set) and len(node.elts) == 1:
        yield Edit(node, "set()")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _EFFECTS.search(text(node)):
        yield Edit(node, f"({text(node.left)})")
        yield Edit(node, f"({text(node.right)})")


def drop_keyword(place: Place, text: Text) -> Iterator[Edit]:
    node = place.node
    # The `strict` of `zip` is a check of the library itself.
    if isinstance(node, ast.keyword) and node.arg and node.arg != "strict" and not _EFFECTS.search(node.arg):
        yield from _without_keyword(place, node, text)


def drop_element(place: Place, text: Text) -> Iterator[Edit]:
    """One element less in a list, a tuple, a set or a dict."""
    node = place.node
    if (
        isinstance(node, ast.List | ast.Tuple | ast.Set)
        and len(node.elts) > 1
        and isinstance(place.parent, ast.Call | ast.Return)
    ):
        kept = ", ".join(text(each) for each in node.elts[:-1])
        brackets = {ast.List: ("[", "]"), ast.Tuple: ("(", ")"), ast.Set: ("{", "}")}
        left, right = brackets[type(node)]
        yield Edit(node, f"{left}{kept},{right}")
    elif isinstance(node, ast.Dict) and len(node.keys) > 1:
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True)][:-1]
        kept = ", ".join(f"{text(key)}: {text(value)}" if key else f"**{text(value)}" for key, value in pairs)
        yield Edit(node, f"{{{kept}}}")
    elif isinstance(node, ast.Starred) and isinstance(place.parent, ast.List | ast.Tuple | ast.Call):
        yield Edit(node, "*()")


def reverse_order(place: Place, text: Text) -> Iterator[Edit]:
    """The newest first, where the oldest was."""
    node = place.node
    if isinstance(node, ast.Subscript) and text(node.slice) == "::-1":
        yield Edit(node, f"({text(node.value)})")
    if not isinstance(node, ast.Call):
        return
    name = _callee(node)
    if name in ("sorted", "reversed") and node.args:
        yield Edit(node, f"[*({text(node.args[0])})][::-1]" if name == "sorted" else f"[*({text(node.args[0])})]")
    elif isinstance(node.func, ast.Attribute):
        owner, arguments = text(node.func.value), ", ".join(text(each) for each in node.args)
        if name == "append" and node.args:
            yield Edit(node, f"{owner}.insert(0, {arguments})")
        elif name == "appendleft":
            yield Edit(node, f"{owner}.append({arguments})")
        elif name == "popleft" or (name == "pop" and arguments == "0"):
            yield Edit(node, f"{owner}.pop()")


def drop_cleanup(place: Place, text: Text) -> Iterator[Edit]:
    """A `finally` that does nothing, and an exception that is not caught."""
    del text
    node = place.node
    if isinstance(node, ast.Try) and node.finalbody:
        for each in node.finalbody:
            yield Edit(each, "pass")
    elif isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
        yield Edit(node.body[0], "raise")


def _without_keyword(place: Place, node: ast.keyword, text: Text) -> Iterator[Edit]:
    call = place.parent
    if not isinstance(call, ast.Call):
        return
    arguments = [text(each) for each in call.args]
    arguments += [
        f"**{text(each.value)}" if each.arg is None else f"{each.arg}={text(each.value)}"
        for each in call.keywords
        if each is not node
    ]
    yield Edit(call, f"{text(call.func)}({', '.join(arguments)})")


def _callee(node: ast.Call) -> str:
    return (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )


FIELD: dict[str, Operator] = {
    "drop copy": drop_copy,
    "drop wait": drop_wait,
    "drop lock": drop_lock,
    "drop check": drop_check,
    "drop branch": drop_branch,
    "drop effect": drop_effect,
    "drop keyword": drop_keyword,
    "drop element": drop_element,
    "reverse order": reverse_order,
    "drop cleanup": drop_cleanup,
}

OPERATORS: dict[str, Operator] = {**FIELD, **USUAL}
"""Those of the field first: of two operators that make the same source, the first one names the mutant."""
