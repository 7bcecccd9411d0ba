"""The Markdown pages of this checkout, as a reader of the repository has them: their blocks, links and anchors."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"

# A backtick inside of the code is a part of it, if the fence has more of them.
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page: the number of its first line of code, its language, and its text."""

    line: int
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Example:
    """A block of Python, and the output that the page shows right after it; None if it shows none."""

    line: int
    source: str
    output: str | None


def pages() -> list[Path]:
    """All pages of the documentation."""
    others = [*PROJECT.glob("*.md"), *PROJECT.glob("conformance/*.md"), *PROJECT.glob("examples/**/*.md")]
    return sorted([*others, *DOCS.rglob("*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(PROJECT).as_posix()


@functools.cache
def parts(page: Path) -> tuple[tuple[int, str | Block], ...]:
    """The page as a sequence of lines outside of all blocks, and of blocks, each with the number of its line."""
    return tuple(_parts(page.read_text(encoding="utf-8")))


def _parts(text: str) -> Iterator[tuple[int, str | Block]]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        begin = _FENCE.match(line)
        if not begin:
            yield number, line
            continue
        indent, fence, language = begin.groups()
        code = []
        for _, inner in lines:
            if inner.strip().startswith(fence) and not inner.strip().strip(fence[0]):
                break
            code.append(inner.removeprefix(indent))
        yield number, Block(number + 1, language.strip(), "".join(f"{each}\n" for each in code))


def examples(page: Path) -> list[Example]:
    """The blocks of Python of a page; a block of text right after one is its output."""
    found: list[Example] = []
    follows = False
    for _, part in parts(page):
        if isinstance(part, Block):
            if part.language == "python":
                found.append(Example(part.line, part.text, None))
                follows = True
            else:
                if follows and part.language in ("", "text"):
                    found[-1] = dataclasses.replace(found[-1], output=part.text)
                follows = False
        elif part.strip():
            follows = False
    return found


def links(page: Path) -> list[tuple[int, str]]:
    """The targets of a page's links and pictures, each with the number of the line in which it begins.

    What stands in code is no link.
    """
    lines = [""] * (parts(page)[-1][0] if parts(page) else 0)
    for number, part in parts(page):
        if isinstance(part, str):
            lines[number - 1] = _CODE.sub("`", part)
    text = "\n".join(lines)
    return [(text.count("\n", 0, found.start()) + 1, found[1]) for found in _LINK.finditer(text)]


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    slugs: Counter[str] = Counter()
    found = set()
    for _, part in parts(page):
        heading = _HEADING.match(part) if isinstance(part, str) else None
        if heading:
            words = re.sub(r"\]\([^)]*\)", "", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
            found.add(f"{slug}-{slugs[slug]}" if slugs[slug] else slug)
            slugs[slug] += 1
    return frozenset(found)


def complaint(page: Path, target: str) -> str | None:
    """Why a link of a page leads nowhere; None if it leads somewhere, or out of this checkout."""
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.is_relative_to(PROJECT.resolve()):
        return "leaves the checkout"
    if not there.exists():
        return "is no file or folder"
    if anchor and there.suffix == ".md" and anchor not in anchors(there):
        return f"has no heading for #{anchor}"
    return None
