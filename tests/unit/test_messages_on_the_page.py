"""The page of errors has messages of hostcb's source, and of the runtime where it says so."""

from __future__ import annotations

import ast
import functools

import pytest
from support import pages

PAGE = pages.DOCS / "errors.md"
OF_OTHERS = ("XLA writes this", "JAX writes this", "JAX's distributed service writes this")
"""What the page says below a message that is not hostcb's."""


@functools.cache
def texts() -> str:
    """All texts of hostcb's source, with a mark where a value is put in."""
    found = []
    for path in (pages.PROJECT / "hostcb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return " ".join("\n".join(found).split())


def messages() -> list[str]:
    """The messages of the page, but for those of others."""
    parts = [part for _, part in pages.parts(PAGE)]
    found = []
    for place, part in enumerate(parts):
        if isinstance(part, pages.Block) and part.language == "text":
            below = " ".join(each for each in parts[place + 1 : place + 4] if isinstance(each, str))
            if not any(words in below for words in OF_OTHERS):
                found.append(" ".join(part.text.split()))
    return found


def missing(message: str) -> list[str]:
    """The pieces of a message between `...` that hostcb does not have."""
    pieces = [piece.strip() for piece in message.split("...")]
    return [piece for piece in pieces if piece and piece not in texts()]


@pytest.mark.parametrize("message", messages())
def test_a_message_on_the_page_is_one_of_hostcb(message: str) -> None:
    assert missing(message) == []


def test_another_message_is_noticed() -> None:
    assert missing("was batched by vmap. ... hostcb has no such words") == ["hostcb has no such words"]
