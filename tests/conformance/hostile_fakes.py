"""Results whose every text tries to be more than text, and what a report of them consists of."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

WORDS = {
    "a script": "<script>alert(1)</script>",
    "an image": "\"><img src=x onerror=alert(1)> ' onclick='alert(1)",
    "the end of an element": "</script></style></pre></code></td></table></title><svg onload=alert(1)>",
    "comments and CDATA": "<!-- --> --!> ]]> <![CDATA[ <?php ?> &lt;b&gt; &#x3c;i>",
    "an address": "javascript:alert(1)",
    "a link of Markdown": "[x](javascript:alert(1)) ![x](https://example.org/x.png) <https://example.org> [x]: y",
    "columns": "a | b || \\| c \\",
    "fences": "``` ````` ~~~ `x` ``",
    "a list": "- # > * + 1. _x_ **y** $\\href{javascript:alert(1)}{z}$",
    "mentions": "@everyone @some-org/team",
    "commands of a terminal": "\x1b[31m\x1b]0;title\x07\x1b[2J\x9b2J\x08\x08\r\x7f",
    "more lines": "one\nPROBLEM: two\r\n| three |\x0b\x0c\x1c\x85\u2028# four\u2029```",
    "directions": "\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c\ufeff\u200b",
    "places of the template": "{{ results }} {{ policy }} {{ {0} }} %s ${x}",
    "names of JavaScript": "__proto__ constructor toString",
    "what is no text": "\x00\udfff\ud800\ufffe",
    "very long": "A" * 300_000,
    "a table's formula": "=cmd|' /C calc'!A0",
}

HARMLESS = "word"


def id_of(word: str) -> str:
    """A cell's id with this word in each part."""
    part = word.replace("/", "\N{DIVISION SLASH}")
    return f"{part}/{part}/{part}.scan/{part}"


def results(word: str) -> dict[str, Any]:
    """A run with a failure, a known failure and a refusal, and this word wherever there is a text."""
    span = {"thread": 1, "begin": 5, "end": 9}
    event = {"sequence": 0, "site": word, "value": [word, {word: None}], "transforms": word, "device": None, **span}
    failed: dict[str, Any] = {
        "id": id_of(word),
        "promises": [word],
        "verdict": word,
        "stage": word,
        "anomaly": word,
        "witness": f"{word}\n{word}",
        "seconds": 0.5,
        "signal": None,
        "history": [event, event | {"sequence": 1, "device": 0}],
        "evidence": [[0, 2], [1, 1]],
        "standing": "unexpected",
        "expected": word,
        "known": None,
        "attempts": 2,
        "reproduce": word,
        "repeated": {"outcomes": [{"verdict": word, "stage": word, "anomaly": word, "count": 3, "witness": word}]},
    }
    known = failed | {
        "id": f"{id_of(word)}-2dev",
        "standing": "known_failure",
        "known": {"reason": word, "link": word, "intermittent": False},
    }
    refused = failed | {"id": f"{id_of(word)}-4dev", "cause": word}
    return {
        "schema": 1,
        "platform": "cpu",
        "run_info": {word: {word: word}},
        "seconds": 1.5,
        "exit_code": 1,
        "problems": [word],
        "cells": [failed, known, refused],
        "ineligible": [{"id": id_of(word), "reason": word}],
        "stale_expectations": [word],
        "claims": [{"name": word, "cells": 1, "failed": [id_of(word)]}],
    }


def write(folder: Path, word: str, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conformance-cpu.json").write_text(json.dumps(results(word) | fields))
    return folder


class Page(HTMLParser):
    """A page as a browser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.others: list[str] = []
        """Comments, declarations and processing instructions."""
        self.texts: dict[str, list[str]] = {}
        """By the tag of the element in which they are, for scripts and styles."""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_decl(self, decl: str) -> None:
        self.others.append(decl)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    @property
    def policy(self) -> str:
        found = [dict(attributes) for tag, attributes in self.elements if tag == "meta"]
        (policy,) = [str(one["content"]) for one in found if one.get("http-equiv") == "Content-Security-Policy"]
        return policy


def outside_of_code(markdown: str) -> list[str]:
    """The lines of Markdown that are in no fence, with each code span as a dot."""
    found, fence = [], None
    for line in markdown.split("\n"):
        if fence is not None:
            fence = None if line == fence else fence
        elif re.fullmatch("`{3,}", line):
            fence = line
        else:
            found.append(_without_spans(line))
    assert fence is None, "a fence has no end"
    return found


def _without_spans(line: str) -> str:
    """A span ends with as many backticks as it begins with; an escaped one begins none."""
    kept, place = "", 0
    for begin in re.finditer(r"\\.|(`+)", line):
        if begin.start() < place or begin[1] is None:
            continue
        end = re.search(rf"(?<!`){begin[1]}(?!`)", line[begin.end() :])
        if end is not None:
            kept += f"{line[place : begin.start()]}."
            place = begin.end() + end.end()
    return kept + line[place:]
