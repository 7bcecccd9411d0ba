"""Text of others in Markdown: nothing of it is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def text(words: str) -> str:
    """Text for a separate line or a table, with all Markdown syntax escaped."""
    # A sign of its own instead of an @ that begins a word: an escaped one still mentions a user.
    words = re.sub(r"(?<!\w)@", "\N{FULLWIDTH COMMERCIAL AT}", " ".join(words.split()))
    escaped = re.sub(r"([\\`*_\[\]|~<>&$])", r"\\\1", words)
    # Even after a backslash, these would start a tag or an entity in some renderers.
    return escaped.replace(r"\&", "&amp;").replace(r"\<", "&lt;").replace(r"\>", "&gt;")


def code(words: str) -> str:
    """A code span; a pipe would end the table's cell even there."""
    words = " ".join(words.split()).replace("|", "\N{FULLWIDTH VERTICAL LINE}")
    fence = _longer_fence(words, 1)
    space = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{space}{words}{space}{fence}"


def fenced(words: str) -> Iterable[str]:
    fence = _longer_fence(words, 3)
    return (fence, *words.splitlines(), fence)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---") -> Iterator[str]:
    """A table of entries that are Markdown already; `align` is that of all columns but the first."""
    for row in (head, ["---", *[align] * (len(head) - 1)], *rows):
        yield f"| {' | '.join(row)} |"


def link(words: str) -> str:
    """A link, if the text is a URL; an expectation may also say that there is none."""
    return f"<{words}>" if re.fullmatch(r"https?://[^\s<>]+", words) else text(words)


def _longer_fence(words: str, least: int) -> str:
    """A fence with more backticks than any run of backticks in the text."""
    runs = [len(run) for run in re.findall("`+", words)]
    return "`" * max(least, *(length + 1 for length in runs)) if runs else "`" * least
