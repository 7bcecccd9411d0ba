"""Expressions that select cells by their ids, like pytest's `-k`: `id_tap and not (vmap or pmap)`.

Unlike in pytest, a word may be a glob, which must match the whole id.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from ..spec.errors import CommandError

Matcher: TypeAlias = Callable[[str], bool]

_TOKEN = re.compile(r"\s*([()]|[\w:+\-.\[\]\\/*?,!]+)")


def matcher(expression: str) -> Matcher:
    """A function that tests whether an id matches an expression, ignoring case."""
    parser = _Parser(expression)
    found = parser.alternatives()
    parser.end()
    return found


def any_of(expressions: Sequence[str], names: Collection[str], what: str = "cell") -> Matcher:
    """Whether a name matches one of the expressions; one that matches none of these names is refused."""
    matchers = [matcher(expression) for expression in expressions]
    for expression, matches in zip(expressions, matchers, strict=True):
        if not any(map(matches, names)):
            raise CommandError(f"-k {expression!r} matches no {what}")
    return lambda cell_id: any(matches(cell_id) for matches in matchers)


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens: list[str] = []
        position = 0
        while expression[position:].strip():
            found = _TOKEN.match(expression, position)
            if not found:
                raise self._error(f"{expression[position:].strip()[0]!r} cannot be part of it")
            self._tokens.append(found[1])
            position = found.end()

    def alternatives(self) -> Matcher:
        parts = [self._conjunction()]
        while self._next("or"):
            parts.append(self._conjunction())
        return lambda cell_id: any(part(cell_id) for part in parts)

    def end(self) -> None:
        if self._tokens:
            raise self._error(f"'and', 'or' or the end is expected before {self._tokens[0]!r}")

    def _conjunction(self) -> Matcher:
        parts = [self._negation()]
        while self._next("and"):
            parts.append(self._negation())
        return lambda cell_id: all(part(cell_id) for part in parts)

    def _negation(self) -> Matcher:
        if self._next("not"):
            negated = self._negation()
            return lambda cell_id: not negated(cell_id)
        if self._next("("):
            inner = self.alternatives()
            if not self._next(")"):
                raise self._error("a parenthesis is not closed")
            return inner
        if not self._tokens or self._tokens[0] in ("and", "or", ")"):
            raise self._error(f"a word is expected before {self._tokens[0]!r}" if self._tokens else "a word is missing")
        word = self._tokens.pop(0).lower()
        return lambda cell_id: word in cell_id.lower() or fnmatch.fnmatchcase(cell_id.lower(), word)

    def _next(self, token: str) -> bool:
        if self._tokens[:1] != [token]:
            return False
        self._tokens.pop(0)
        return True

    def _error(self, what: str) -> CommandError:
        return CommandError(f"-k {self._expression!r}: {what}; it is like 'id_tap and not (vmap or pmap)'")
