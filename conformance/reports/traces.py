"""The history of a cell as a trace for Perfetto: JSON in Chrome's trace event format."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, TypeAlias

from .results import CellRecord, EventRecord

LONGEST_OPERAND = 600
"""A longer operand or witness is cut."""

Track: TypeAlias = tuple[bool, int, int]
"""Whether it is a thread's, the index of the device or the id of the thread, and its number among those of a device."""


def file_name(cell: CellRecord) -> str:
    return re.sub(r"[^\w.+=-]", "_", cell.id) + ".json"


def trace(cell: CellRecord) -> str:
    """One event a line."""
    return "[\n" + ",\n".join(json.dumps(event) for event in _events(cell)) + "\n]\n"


def _events(cell: CellRecord) -> list[dict[str, Any]]:
    platform = cell.id.split("/")[3].partition("-")[0]
    start = min((event.begin for event in cell.history), default=0)
    threads = list(dict.fromkeys(event.thread for event in cell.history))
    tracks = _tracks(cell.history)
    numbers = {track: number for number, track in enumerate(sorted({*tracks.values()}), 1)}
    made: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": cell.id}},
        {"ph": "M", "pid": 1, "name": "process_labels", "args": {"labels": cell.headline}},
    ]
    for (is_thread, key, nth), number in numbers.items():
        name = f"thread {threads.index(key) + 1}" if is_thread else f"{platform}:{key}"
        name += f" ({nth + 1})" if nth else ""
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    in_witness = dict(cell.evidence)
    for event in cell.history:
        place = {"pid": 1, "tid": numbers[tracks[event.sequence]], "ts": (event.begin - start) / 1e3}
        arguments = {
            "sequence": event.sequence,
            "site": event.site,
            "operand": json.dumps(event.value)[:LONGEST_OPERAND],
            "transforms": event.transforms,
            "thread": f"thread {threads.index(event.thread) + 1}",
        }
        look = {"cat": "callback", "name": event.site}
        if event.sequence in in_witness:
            look = {
                "cat": "callback,witness",
                "name": f"#{in_witness[event.sequence]} {event.site}",
                "cname": "terrible",
            }
            made.append({"ph": "i", "s": "t", "cat": "witness", "name": cell.witness[:LONGEST_OPERAND], **place})
        made.append({"ph": "X", "dur": (event.end - event.begin) / 1e3, **look, **place, "args": arguments})
    return made


def _tracks(events: tuple[EventRecord, ...]) -> dict[int, Track]:
    """The track of each event: its device's, or its thread's if the device is not known.

    Slices of a track do not overlap, so a device may need several.
    """
    ends: dict[Track, int] = {}
    found: dict[int, Track] = {}
    for event in sorted(events, key=lambda event: event.begin):
        key = event.thread if event.device is None else event.device
        candidates = ((event.device is None, key, nth) for nth in itertools.count())
        track = next(each for each in candidates if ends.get(each, 0) <= event.begin)
        ends[track] = event.end
        found[event.sequence] = track
    return found
