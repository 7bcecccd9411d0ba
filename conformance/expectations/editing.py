"""Edits the text of an expectation file entry by entry: the rest of the text stays the same, to the byte."""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from .entries import Expectation, ExpectationError, read_entries

_HEADER = re.compile(r"\s*\[\[\s*expect\s*\]\]")
# Of a multi-line string only the beginning; strings of one line, and comments, may hold such quotes.
_STRING_OR_COMMENT = re.compile(r'"""|\'\'\'|"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')
# The rest of a multi-line string; up to two quotes may stand before the three that end it.
_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    "'''": re.compile(r"(?:[^']|'{1,2}(?!'))*'{3,5}"),
}


@dataclass
class _Span:
    """The lines of one entry: from its header to its last line that is neither empty nor a comment."""

    start: int
    end: int


class ExpectationFile:
    """The lines of the file, and the span of each entry."""

    def __init__(self, text: str, name: str) -> None:
        self.entries: tuple[Expectation, ...] = read_entries(text, name)
        # Not `splitlines`: a string may hold what Python takes for the end of a line and TOML does not.
        self._lines = io.StringIO(text).readlines()
        if self._lines and not self._lines[-1].endswith("\n"):
            self._lines[-1] += "\n"
        self._spans = _spans(self._lines)
        self._changed: dict[int, list[str]] = {}
        self._added: list[str] = []
        if len(self._spans) != len(self.entries):
            raise ExpectationError(f"{name}: its entries are to start with [[expect]] on lines of their own")

    def narrow(self, number: int, cells: Sequence[str]) -> None:
        """Limit the entry with this index to these cells; without any cell, remove it."""
        span = self._spans[number]
        lines = self._lines[span.start : span.end]
        start, end = _value_span(lines)
        self._changed[number] = [*lines[:start], *_cells_lines(cells), *lines[end:]] if cells else []

    def widen(self, number: int, jax: str) -> None:
        """Let the entry with this index hold for these versions of JAX; it named others before."""
        span = self._spans[number]
        lines = self._lines[span.start : span.end]
        for place, line in enumerate(lines):
            changed = [*lines[:place], f"jax = {json.dumps(jax)}\n", *lines[place + 1 :]]
            # A multi-line reason may hold such a line, too: only the right one changes the entry.
            if re.match(r"\s*jax\s*=", line) and _jax_of(changed) == jax:
                self._changed[number] = changed
                return
        raise AssertionError("an entry that holds for some versions names them")

    def add(self, cells: Sequence[str], verdict: str, stage: str | None, since: str, jax: str, comment: str) -> None:
        """Add an entry without reason and link; a run refuses it until a person has written them."""
        printable = "".join(character if character.isprintable() else " " for character in comment)
        self._added += [
            "\n",
            f"# {printable[:150]}\n",
            "[[expect]]\n",
            *_cells_lines(cells),
            f"verdict = {json.dumps(verdict)}\n",
            *([f"stage = {json.dumps(stage)}\n"] if stage else []),
            *([f"jax = {json.dumps(jax)}\n"] if jax else []),
            'reason = ""\n',
            'link = ""\n',
            f"since = {json.dumps(since)}\n",
        ]

    @property
    def text(self) -> str:
        lines: list[str] = []
        position = 0
        for number, span in enumerate(self._spans):
            start = span.start
            if self._changed.get(number) == []:
                # The comment lines directly above an entry belong to it and are removed, too.
                while start > position and self._lines[start - 1].startswith("#"):
                    start -= 1
            lines += self._lines[position:start]
            lines += self._changed.get(number, self._lines[span.start : span.end])
            position = span.end
            if self._changed.get(number) == [] and self._lines[position : position + 1] == ["\n"]:
                # The empty line after an entry is removed, too.
                position += 1
        return "".join([*lines, *self._lines[position:], *self._added])


def _spans(lines: Sequence[str]) -> list[_Span]:
    spans: list[_Span] = []
    quotes = ""
    for number, line in enumerate(lines):
        inside = bool(quotes)
        quotes = _open_quotes(line, quotes)
        if not inside and _HEADER.match(line):
            spans.append(_Span(number, number + 1))
        elif spans and (inside or (line.strip() and not line.lstrip().startswith("#"))):
            spans[-1].end = number + 1
    return spans


def _open_quotes(line: str, quotes: str) -> str:
    """The quotes of the multi-line string that is still open after this line."""
    position = 0
    while found := _ENDS[quotes].match(line, position) if quotes else _STRING_OR_COMMENT.search(line, position):
        position = found.end()
        quotes = found[0] if not quotes and found[0] in _ENDS else ""
    return quotes


def _value_span(lines: Sequence[str]) -> tuple[int, int]:
    """The lines of `cells = ...` in an entry."""
    start = next(number for number, line in enumerate(lines) if re.match(r"\s*cells\s*=", line))
    for end in range(start + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        return start, end
    raise AssertionError("the entry was read before")


def _jax_of(lines: Sequence[str]) -> str | None:
    """The versions that an entry names."""
    try:
        (table,) = tomllib.loads("".join(lines))["expect"]
    except tomllib.TOMLDecodeError:
        return None
    jax: str | None = table.get("jax")
    return jax


def _cells_lines(cells: Sequence[str]) -> list[str]:
    if len(cells) == 1:
        return [f"cells = {json.dumps(cells[0])}\n"]
    return ["cells = [\n", *(f"  {json.dumps(cell)},\n" for cell in cells), "]\n"]
