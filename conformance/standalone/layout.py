"""Breaks the long lines of a program at brackets and commas. It knows as much of Python as printed programs use."""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 118


def laid_out(text: str) -> str:
    return "\n".join(part for line in text.split("\n") for part in wrapped(line))


def wrapped(line: str) -> list[str]:
    """The line, broken inside of its longest brackets if it is too long, and again inside of these."""
    spans = [*_brackets(line)]
    if len(line) <= WIDTH or not spans:
        return [line]
    start, end = max(spans, key=lambda span: span[1] - span[0])
    inside = line[start + 1 : end]
    if not inside:
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + " " * 4
    lines = [""]
    for piece in _pieces(inside):
        if lines[-1] and len(indent + lines[-1] + piece) > WIDTH:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    inner = [part for each in lines for part in wrapped(indent + each.rstrip())]
    return [line[: start + 1], *inner, indent[4:] + line[end:]]


def _depths(text: str) -> Iterator[tuple[int, str, int]]:
    """Each character outside of strings, with its place and the number of brackets around it."""
    depth, quote = 0, ""
    for place, character in enumerate(text):
        if quote:
            if character == quote and text[place - 1] != "\\":
                quote = ""
            continue
        if character in "\"'":
            quote = character
            continue
        depth -= character in ")]}"
        yield place, character, depth
        depth += character in "([{"


def _brackets(line: str) -> Iterator[tuple[int, int]]:
    """The outermost pairs of brackets."""
    start = 0
    for place, character, depth in _depths(line):
        if depth == 0 and character in "([{":
            start = place
        elif depth == 0 and character in ")]}":
            yield start, place


def _pieces(inside: str) -> Iterator[str]:
    """The text up to each comma; a comprehension is cut before its `for`."""
    outside = {place for place, _, depth in _depths(inside) if depth == 0}
    loops = [found.start() for found in re.finditer(" for ", inside) if found.start() in outside]
    commas = [place + 1 for place, character, depth in _depths(inside) if depth == 0 and character == ","]
    cuts = loops[:1] or commas
    yield from (inside[start:end] for start, end in zip([0, *cuts], [*cuts, len(inside)], strict=True))
