"""Each message on the page about troubleshooting is one that hostcb, JAX or XLA has."""

from __future__ import annotations

import ast
import functools
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import jaxlib
import pages
import pytest

import hostcb

PAGE = pages.DOCS / "troubleshooting.md"
GAP = "\0"
"""Stands for a value within a message: a field of an f-string, of `str.format`, or of a text for the log."""

MESSAGES = [(number, part.text) for number, part in pages.parts(PAGE) if isinstance(part, pages.Block)]


@functools.cache
def messages() -> str:
    """All texts in hostcb's sources, one a line."""
    sources = Path(hostcb.__file__).parent.rglob("*.py")
    return "\n".join(text for source in sources for text in _texts(ast.parse(source.read_text(encoding="utf-8"))))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            yield collapsed("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield collapsed(re.sub(r"%[sdr]|\{\w*\}", GAP, node.value))


def collapsed(text: str) -> str:
    return " ".join(text.split())


def pieces(message: str) -> list[str]:
    """The parts of a message between the `...`."""
    return [piece for piece in map(str.strip, collapsed(message).split("...")) if piece]


def in_sources(message: str) -> bool:
    gap = rf"[^\n]*{GAP}[^\n]*"
    return re.search(gap.join(map(re.escape, pieces(message))), messages()) is not None


@functools.cache
def in_jaxlib(piece: str) -> bool:
    """Whether a library of jaxlib has this text, which is XLA's."""
    for library in Path(jaxlib.__file__).parent.rglob("*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(piece.encode()) >= 0:
                return True
    return False


@pytest.mark.parametrize(("line", "message"), MESSAGES, ids=[f"line{line}" for line, _ in MESSAGES])
def test_the_message_is_one_of_the_sources(line: int, message: str) -> None:
    known = in_sources(message) or all(map(in_jaxlib, pieces(message)))
    assert known, f"{PAGE.name}, line {line}: nothing says\n{message}"


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) > 20


def test_another_message_is_noticed() -> None:
    assert in_sources("hostcb found no ... bytes for a tapped operand.")
    assert not in_sources("hostcb found no ... bytes for a tapped result.")
    assert not in_sources("hostcb found no ... bytes ... such as torch.from_dlpack")
    assert not in_jaxlib("hostcb found no")
