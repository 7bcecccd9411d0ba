"""The text of an expectation file, changed entry by entry: what is not changed stays as it is, to the byte."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.expectations import Expectation, ExpectationError, read_entries

_HEADER = re.compile(r"\s*\[\[\s*expect\s*\]\]")


@dataclass
class _Span:
    """The lines of one entry: from its header to its last line that is neither empty nor a comment."""

    start: int
    end: int


class ExpectationFile:
    """Lines, and where in them each entry is."""

    def __init__(self, text: str, name: str) -> None:
        self.entries: tuple[Expectation, ...] = read_entries(text, name)
        self._lines = text.splitlines(keepends=True)
        if self._lines and not self._lines[-1].endswith("\n"):
            self._lines[-1] += "\n"
        self._spans = _spans(self._lines)
        self._changed: dict[int, list[str]] = {}
        self._added: list[str] = []
        if len(self._spans) != len(self.entries):
            raise ExpectationError(f"{name}: its entries are to start with [[expect]] on lines of their own")

    def narrow(self, number: int, cells: Sequence[str]) -> None:
        """Let the entry with this index be about these cells alone; without any it goes."""
        span = self._spans[number]
        lines = self._lines[span.start : span.end]
        start, end = _value_span(lines)
        self._changed[number] = [*lines[:start], *_cells_lines(cells), *lines[end:]] if cells else []

    def add(self, cells: Sequence[str], verdict: str, stage: str | None, since: str, jax: str, comment: str) -> None:
        """An entry that lacks what only a person can say; a run refuses it until somebody has."""
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
                # With an entry go the lines above that are about it alone.
                while start > position and self._lines[start - 1].startswith("#"):
                    start -= 1
            lines += self._lines[position:start]
            lines += self._changed.get(number, self._lines[span.start : span.end])
            position = span.end
            if self._changed.get(number) == [] and self._lines[position : position + 1] == ["\n"]:
                # With an entry goes the empty line after it.
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
    """The quotes of the text over several lines that is open after this line."""
    for mark in re.findall(r'"""|\'\'\'', line):
        if not quotes:
            quotes = mark
        elif quotes == mark:
            quotes = ""
    return quotes


def _value_span(lines: Sequence[str]) -> tuple[int, int]:
    """Where in an entry `cells = ...` is."""
    start = next(number for number, line in enumerate(lines) if re.match(r"\s*cells\s*=", line))
    for end in range(start + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        return start, end
    raise AssertionError("the entry was read before")


def _cells_lines(cells: Sequence[str]) -> list[str]:
    if len(cells) == 1:
        return [f"cells = {json.dumps(cells[0])}\n"]
    return ["cells = [\n", *(f"  {json.dumps(cell)},\n" for cell in cells), "]\n"]
