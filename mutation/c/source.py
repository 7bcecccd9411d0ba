"""The text of a file in C as far as a mutant may change it: bodies of functions, without comments, texts and macros."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LEFT_OUT = re.compile(
    r"""
    /\*.*?\*/                      # a comment
    | //[^\n]*
    | "(?:\\.|[^"\\\n])*"          # a text
    | '(?:\\.|[^'\\\n])*'
    | ^[ \t]*\#(?:\\\n|[^\n])*     # a line of the preprocessor, with those that it goes on in
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_HEAD = re.compile(r"^[A-Za-z_][^;{}()=]*?(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
_BEGINS = re.compile(r"(?:if|while|for|switch)\s*\(|else\b|do\b|case\b[^:]*:|default:|[;{}]")

_DECLARATION = re.compile(r"(?:(?:const|static|struct|unsigned|__thread)\s+)*\w+\s*\**\s+\**\s*\w+\s*(?:=|;|,|\[|\()")
_LEAVES = re.compile(r"(?:return|break|continue|goto)\b")


@dataclass(frozen=True)
class Function:
    name: str
    start: int
    """The first character of its body."""
    end: int


@dataclass(frozen=True)
class Condition:
    """The condition of an `if` or a `while`."""

    start: int
    end: int
    body: str
    """The text after it, up to the next semicolon."""


def blanked(text: str) -> str:
    """The text with blanks in place of what no mutant changes: each character is where it was."""
    return _LEFT_OUT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def functions(text: str) -> Iterator[Function]:
    """The functions of a blanked text, in its order."""
    for found in _HEAD.finditer(text):
        yield Function(found[1], found.end(), closing(text, found.end() - 1))


def closing(text: str, start: int) -> int:
    """The place of what closes the bracket at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    raise ValueError(f"the bracket at {start} is never closed")


def statements(text: str, function: Function) -> Iterator[tuple[int, int]]:
    """The statements that are one expression: calls and assignments, without their semicolons."""
    place = function.start
    while place < function.end:
        if text[place].isspace():
            place += 1
        elif begins := _BEGINS.match(text, place):
            place = closing(text, begins.end() - 1) + 1 if begins[0].endswith("(") else begins.end()
        else:
            end = _semicolon(text, place)
            if not _DECLARATION.match(text, place) and not _LEAVES.match(text, place):
                yield place, end
            place = end


def conditions(text: str, function: Function) -> Iterator[Condition]:
    for found in re.compile(r"\b(?:if|while)\s*\(").finditer(text, function.start, function.end):
        start, end = found.end(), closing(text, found.end() - 1)
        yield Condition(start, end, text[end + 1 : _semicolon(text, end + 1) + 1].strip())


def parts(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The expressions of a statement that commas divide."""
    found, depth, begin = [], 0, start
    for place in range(start, end):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if text[place] == "," and depth == 0:
            found.append((begin, place))
            begin = place + 1
    return [*found, (begin, end)]


def _semicolon(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if text[place] == ";" and depth <= 0:
            return place
    raise ValueError(f"the statement at {start} never ends")
