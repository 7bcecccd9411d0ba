"""The page of errors has messages of hostcb's source, and of the runtime where it says so."""

from __future__ import annotations

import ast
import functools

import pytest
from support import pages

PAGE = pages.DOCS / "errors.md"
OF_OTHERS = ("XLA writes this", "JAX writes this", "Python writes this", "JAX's distributed service writes this")
"""What the page says below a message that is not hostcb's."""


RAISING = ("Error", "error", "warn", "mismatched", "_unfit")
"""How the names of classes and functions end that make an exception or a warning of a text."""
NO_MISTAKES = (
    "nodes of a tree of results are never objects",
    "does not know its devices, because this JAX",
    "JAX reported the end of a dispatch, but not its begin",
    # The user's function has divided by zero; JAX raises it so.
    "invalid value (",
    # Only the texts that come after this are on the page.
    "Callback func \0 \0",
)
"""Parts of messages that no mistake of a user can bring."""


def text_of(node: ast.AST) -> str | None:
    """A text of the source, with a mark where a value is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@functools.cache
def nodes() -> list[ast.AST]:
    paths = (pages.PROJECT / "hostcb").rglob("*.py")
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@functools.cache
def texts() -> str:
    """All texts of hostcb's source."""
    return " ".join("\n".join(filter(None, map(text_of, nodes()))).split())


def raised() -> list[str]:
    """The texts of exceptions and warnings."""
    calls = [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(RAISING)]
    found = [text_of(argument) for call in calls for argument in call.args]
    return [text for text in found if text is not None and len(text.split()) > 3]


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


def test_what_a_mistake_of_a_user_raises_is_on_the_page() -> None:
    pieces = [piece.strip() for message in messages() for piece in message.split("...") if len(piece.split()) > 1]
    assert len(raised()) > 90
    assert [text for text in raised() if not any(known in text for known in (*pieces, *NO_MISTAKES))] == []
