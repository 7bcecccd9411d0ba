"""Results as a run writes them, and what a page or a Markdown text consists of. No cell runs for them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from conformance.reports.results import SCHEMA_VERSION


def event(sequence: int, device: int | None, **fields: Any) -> dict[str, Any]:
    start = 10_000_000_000_000 + sequence * 7_000
    times = {"thread": 140_172_696_722_304, "begin": start, "end": start + 3_000}
    own = {"sequence": sequence, "site": "first", "value": [1.0], "transforms": "()", "device": device}
    return own | times | fields


def cell(cell_id: str, **fields: Any) -> dict[str, Any]:
    passed = {"id": cell_id, "promises": ["H1"], "verdict": "pass", "stage": None, "anomaly": "", "witness": ""}
    passed |= {"seconds": 0.25, "signal": None, "history": [], "evidence": [], "status": "as_expected"}
    passed |= {"expected": "pass", "known": None, "attempts": 1}
    return passed | {"reproduce": f"python -m conformance run --cell {cell_id}"} | fields


def failed(cell_id: str, anomaly: str, witness: str, status: str = "unexpected", **fields: Any) -> dict[str, Any]:
    own = {"verdict": "fail", "stage": "callback", "anomaly": anomaly, "witness": f"{anomaly}: {witness}"}
    return cell(cell_id, status=status, **own | fields)


PASSED = cell("hostcb/id_tap/vmap.scan/cpu-8dev")
LOST = failed("hostcb/call/scan/cpu-8dev", "lost", "cpu:3 never ran #6", attempts=2, seconds=1.5)
LOST["history"] = [event(0, 3), event(1, 0, value=[float("nan"), float("inf")])]
WHY = {"reason": "Dropped under grad.", "link": "https://example.org/issues/1", "intermittent": False}
KNOWN = failed("jax/io_callback/grad.scan/cpu-1dev", "order", "cpu:0 ran #2 before #1", "known_failure", known=WHY)
KNOWN["expected"] = "fail"
CASE = cell("jax/io_callback/case.raises.jit/cpu-8dev", status="unexpected_pass", expected="hang")


def results(*cells: dict[str, Any], platform: str = "cpu", **fields: Any) -> dict[str, Any]:
    info = {"jax": "0.12.0.1", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    own = {"schema": SCHEMA_VERSION, "platform": platform, "depth": "run", "run_info": {"cpu-8dev": info}}
    own |= {"seconds": 12.0, "process_starts": 1, "exit_code": 1, "cells": list(cells)}
    own |= {name: [] for name in ("problems", "gaps", "claims", "stale_expectations")}
    return own | {"ineligible": [{"id": "hostcb/id_tap/pmap.pmap/cpu-8dev", "reason": "JAX refuses"}]} | fields


def write(folder: Path, *cells: dict[str, Any], platform: str = "cpu", **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = results(*cells, platform=platform, **fields)
    (folder / f"conformance-{str(platform).replace('/', '_')}.json").write_text(json.dumps(data))
    return folder


HARMLESS = "word"


def hostile(word: str) -> dict[str, Any]:
    """A run with a failure, a known failure and a refusal, and this word wherever there is a text."""
    part = word.replace("/", "\N{DIVISION SLASH}")[:50]
    name = f"{part}/{part}/{part}.scan/{part}"
    history = [event(0, None, site=word, value=[word, {word: None}], transforms=word), event(1, 0, site=word)]
    own = dict.fromkeys(("verdict", "stage", "anomaly", "expected", "reproduce"), word)
    failed = LOST | own | {"id": name, "promises": [word], "witness": f"{word}\n{word}", "history": history}
    way = {"verdict": word, "stage": word, "anomaly": word, "count": 3, "witness": word}
    failed |= {"evidence": [[0, 2], [1, 1]], "repeated": {"outcomes": [way]}}
    known = {"status": "known_failure", "known": {"reason": word, "link": word, "intermittent": False}}
    cells = [failed, failed | {"id": f"{name}-2dev"} | known, failed | {"id": f"{name}-4dev", "cause": word}]
    of_run = {"run_info": {word: {word: word}}, "problems": [word], "ineligible": [{"id": name, "reason": word}]}
    claims = [{"name": word, "cells": 1, "failed": [name]}]
    suite = dict.fromkeys(("version", "commit", "changed"), word)
    made = {"suite": suite, "begin": word, "command": word, "packages": {word: word}, "plugins": {word: word}}
    made["plan"] = {"count": 7}
    return results(*cells, **of_run, stale_expectations=[word], claims=claims, run=made)


class Page:
    """The parts of a page that the words of others may not change, and what its script reads."""

    def __init__(self, text: str) -> None:
        self.tags = re.findall(r"<[^>]*>", text)
        (self.style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        (self.title,) = re.findall(r"<title>(.*?)</title>", text)
        data, self.script = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
        self.data: Any = json.loads(data)
        (self.policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)


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
