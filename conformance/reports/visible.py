"""Text of others for a terminal or a file: what is no printable character is shown, and not obeyed.

A witness may quote what a compiler wrote, and results may come from somebody else. A terminal obeys control characters,
and controls of direction let words look like others.
"""

from __future__ import annotations


def visible(text: str) -> str:
    """The text with its lines, in which escapes stand for what cannot be printed."""
    return _escaped(text, "\n\t")


def in_a_line(text: str) -> str:
    """The same in one line: an end of a line would begin a line that only looks like one of the report."""
    return _escaped(text, "")


def clipped(text: str, width: int = 300) -> str:
    """The beginning of a long text, which says that there is more."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in text
    )
