"""A page without other files: the template, with the results in it as data.

All that comes from the run is one JSON text; the page's script puts it in place as text, never as
markup. So there is one context to escape for, and it is here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from ..oracle.repetition import Repetition
from ..spec.package import command_here
from .capabilities import table_of
from .causes import grouped
from .results import CellRecord, Known, RunRecord
from .visible import visible


def html(runs: Sequence[RunRecord]) -> str:
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    style, script = (_hash(_text_of(tag, template)) for tag in ("style", "script"))
    policy = f"default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"
    title = ", ".join(f"{'PASS' if run.good else 'FAIL'}: {visible(run.name)}" for run in runs)
    parts = {"policy": policy, "title": escape(title), "results": script_safe(_page_data(runs))}
    # In one step, since a part may have the words of a place.
    return re.sub(r"\{\{ (policy|title|results) \}\}", lambda place: parts[place[1]], template)


def _hash(text: str) -> str:
    """As a Content-Security-Policy allows a style or a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text_of(tag: str, template: str) -> str:
    """The text of the only element without attributes that has this tag."""
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
    return str(text)


def script_safe(data: Any) -> str:
    """JSON that cannot end the script element it is in."""
    text = json.dumps(_readable(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _readable(data: Any) -> Any:
    """The data with all of its texts visible: a control of direction would turn the words of a witness around."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {visible(name): _readable(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_readable(each) for each in data]
    return data


def _page_data(runs: Sequence[RunRecord]) -> dict[str, Any]:
    # Known failures come in dozens with the same long reason.
    known = list(dict.fromkeys(cell.known for run in runs for cell in run.cells if cell.known))
    return {
        "known": [{"verdict": k.verdict, "reason": " ".join(k.reason.split()), "link": _link(k.link)} for k in known],
        "runs": [
            {
                "name": run.name,
                "good": run.good,
                "facts": [[name, value] for name, value in (run.facts | run.origin).items() if value],
                "problems": run.all_problems,
                "capabilities": _capabilities_data(run),
                "claims": [claim.sentence for claim in run.claims],
                "causes": [
                    {"title": group.title, "notes": group.notes, "cells": [cell.id for cell in group.cells]}
                    for group in grouped(run)
                ],
                "environment": {
                    topology: {name: str(value) for name, value in info.items() if value != ""}
                    for topology, info in run.environment.items()
                },
                "cells": [_cell_data(cell, known) for cell in run.cells],
            }
            for run in runs
        ],
    }


def _link(words: str) -> str:
    """A path of the repository is an address only where the documentation is built, which knows that of the sources."""
    base = os.environ.get("HOSTCB_SOURCES_URL")
    return f"{base.rstrip('/')}/{words}" if base and words.startswith(("docs/", "ci/")) else words


def _capabilities_data(run: RunRecord) -> dict[str, Any]:
    columns, rows = table_of(run.capabilities)
    answers = [[name, *([row.answer, row.counted] for row in of_name)] for name, of_name in rows.items()]
    return {"columns": columns, "rows": answers}


def _cell_data(cell: CellRecord, known: Sequence[Known]) -> dict[str, Any]:
    data = {
        "id": cell.id,
        "transforms": cell.transforms,
        "promises": cell.promises,
        "verdict": cell.verdict,
        "status": cell.status.value,
        "seconds": cell.seconds,
        "reproduce": command_here(cell.reproduce),
        "stage": cell.stage,
        "anomaly": cell.anomaly,
        "witness": cell.witness,
        "expected": None if cell.status.acceptable else cell.expected,
        "entry": cell.entry,
        "attempts": cell.attempts if cell.attempts != 1 else None,
        "known": known.index(cell.known) if cell.known else None,
        "history": _history_data(cell),
        "repeated": _repeated_data(cell.repetition) if cell.repetition else None,
    }
    # The page keeps no details of passed cells, since there are thousands.
    return {name: value for name, value in data.items() if value not in (None, "", [])}


def _history_data(cell: CellRecord) -> list[dict[str, Any]]:
    """The events, each with the words of its line in the page's table. Only those of the witness have its numbers."""
    events, numbers = cell.history, dict(cell.evidence)
    start = min((event["begin"] for event in events), default=0)
    # A thread's id says nothing, and is larger than the exact integers of JavaScript.
    threads = list(dict.fromkeys(event["thread"] for event in events))
    found = []
    for event in events:
        device = event["device"]
        where = f"thread {threads.index(event['thread']) + 1}" if device is None else f"device {device}"
        # As JSON, which has no other way to write NaN in a page.
        value, begin, end = json.dumps(event["value"]), event["begin"] - start, event["end"] - start
        times = (f"{time / 1e3:.1f} µs" for time in (begin, end - begin))
        number = f"#{numbers[event['sequence']]}" if event["sequence"] in numbers else ""
        words = [number, where, event["site"], value, event["transforms"], *times]
        line = {"number": number, "where": where, "begin": begin, "end": end, "site": event["site"]}
        found.append(line | {"value": value, "words": words})
    return found


def _repeated_data(repetition: Repetition) -> dict[str, Any]:
    return {
        "words": repetition.words,
        "outcomes": [[str(way.count), way.headline, way.witness] for way in repetition.ways],
    }
