"""The operators for C: each takes a function of a file, and gives what could stand in a place of it instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .source import Function, conditions, parts, statements


@dataclass(frozen=True)
class Change:
    """Another text from the place `start` up to `end`."""

    start: int
    end: int
    text: str


Operator: TypeAlias = Callable[[str, Function], Iterator[Change]]

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "&": "|"}

_LOCKS = re.compile(r"pthread_mutex_\w+|(un)?lock")
_WAITS = re.compile(r"pthread_cond_\w+|\w*wait\w*|\w*wake\w*|\w*settle\w*")
_COPIES = re.compile(r"mem(cpy|move|set)|copy\w*|stream\w*")
_REFUSES = re.compile(r"(return|break|continue)\b")


def negate_condition(text: str, function: Function) -> Iterator[Change]:
    for one in conditions(text, function):
        yield Change(one.start, one.end, f"!({text[one.start : one.end]})")


def drop_check(text: str, function: Function) -> Iterator[Change]:
    """What is refused, or ended early, no longer is."""
    for one in conditions(text, function):
        if _REFUSES.match(one.body):
            yield Change(one.start, one.end, f"0 && ({text[one.start : one.end]})")


def drop_branch(text: str, function: Function) -> Iterator[Change]:
    """Always, and never."""
    for one in conditions(text, function):
        if not _REFUSES.match(one.body):
            yield Change(one.start, one.end, f"0 && ({text[one.start : one.end]})")
            if text[: one.start].rstrip("( ").endswith("if"):
                yield Change(one.start, one.end, f"1 || ({text[one.start : one.end]})")


def compare(text: str, function: Function) -> Iterator[Change]:
    yield from _operators(text, function, _COMPARISONS)


def arithmetic(text: str, function: Function) -> Iterator[Change]:
    yield from _operators(text, function, _ARITHMETIC)


def and_or(text: str, function: Function) -> Iterator[Change]:
    yield from _operators(text, function, {"&&": "||", "||": "&&"})


def constant(text: str, function: Function) -> Iterator[Change]:
    for found in re.compile(r"(?<![\w.])\d+(?![\w.])").finditer(text, function.start, function.end):
        yield Change(found.start(), found.end(), f"({found[0]} + 1)")


def index(text: str, function: Function) -> Iterator[Change]:
    """The same element again, in place of the next one."""
    for found in re.compile(r"\*(\w+)\+\+").finditer(text, function.start, function.end):
        yield Change(found.start(), found.end(), f"*{found[1]}")


def drop_element(text: str, function: Function) -> Iterator[Change]:
    """One of the expressions that commas divide."""
    for start, end in statements(text, function):
        found = parts(text, start, end)
        for begin, stop in found if len(found) > 1 else ():
            yield Change(begin, stop, " (void)0")


def drop_statement(text: str, function: Function) -> Iterator[Change]:
    yield from _dropped(text, function, None)


def drop_lock(text: str, function: Function) -> Iterator[Change]:
    yield from _dropped(text, function, _LOCKS)


def drop_wait(text: str, function: Function) -> Iterator[Change]:
    yield from _dropped(text, function, _WAITS)


def drop_copy(text: str, function: Function) -> Iterator[Change]:
    yield from _dropped(text, function, _COPIES)


# As in `mutation.field_operators`, where a kind has the same name.
OPERATORS: dict[str, Operator] = {
    "negate condition": negate_condition,
    "comparison": compare,
    "constant": constant,
    "index": index,
    "and/or": and_or,
    "arithmetic": arithmetic,
    "drop statement": drop_statement,
    "drop copy": drop_copy,
    "drop wait": drop_wait,
    "drop lock": drop_lock,
    "drop check": drop_check,
    "drop branch": drop_branch,
    "drop element": drop_element,
}


def _operators(text: str, function: Function, others: dict[str, str]) -> Iterator[Change]:
    """Operators between two operands; a pointer's star, and a sign, have no blank after them."""
    for found in re.compile(r"(?<= )([-+*/%&|<>=!]+)(?= )").finditer(text, function.start, function.end):
        if found[0] in others:
            yield Change(found.start(), found.end(), others[found[0]])


def _dropped(text: str, function: Function, wanted: re.Pattern[str] | None) -> Iterator[Change]:
    """Calls of certain functions; all other statements if there is no pattern."""
    for start, end in statements(text, function):
        called = re.compile(r"\w+(?=\()").match(text, start)
        named = {each for each in (_LOCKS, _WAITS, _COPIES) if called and each.fullmatch(called[0])}
        if wanted in named or (wanted is None and not named):
            yield Change(start, end, "(void)0")
