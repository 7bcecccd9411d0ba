"""The history of a cell as a trace for Perfetto: JSON in Chrome's trace event format."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from .results import CellRecord, EventRecord

LONGEST_OPERAND = 600
"""A longer operand or witness is cut."""

Track = tuple[bool, int, int]
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
    tracks = _tracks(cell)
    numbers = {track: number for number, track in enumerate(sorted(set(tracks.values())), 1)}
    made: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": cell.id}},
        {"ph": "M", "pid": 1, "name": "process_labels", "args": {"labels": cell.headline}},
    ]
    for (is_thread, key, lane), number in numbers.items():
        name = f"thread {threads.index(key) + 1}" if is_thread else f"{platform}:{key}"
        name += f" ({lane + 1})" if lane else ""
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    in_witness = dict(cell.evidence)
    for event in cell.history:
        place = {"pid": 1, "tid": numbers[tracks[event.sequence]], "ts": (event.begin - start) / 1e3}
        marked = event.sequence in in_witness
        arguments = {
            "sequence": event.sequence,
            "site": event.site,
            "operand": json.dumps(event.value)[:LONGEST_OPERAND],
            "transforms": event.transforms,
            "thread": f"thread {threads.index(event.thread) + 1}",
        }
        name = event.site
        if marked:
            name = f"#{in_witness[event.sequence]} {event.site}"
            made.append({"ph": "i", "s": "t", "cat": "witness", "name": cell.witness[:LONGEST_OPERAND], **place})
        slice_ = {"ph": "X", "dur": (event.end - event.begin) / 1e3, "cat": "callback", "name": name, **place}
        made.append(slice_ | ({"cat": "callback,witness", "cname": "terrible"} if marked else {}) | {"args": arguments})
    return made


def _tracks(cell: CellRecord) -> dict[int, Track]:
    """The track of each event, by its sequence. Slices of a track do not overlap, so a device may need several."""
    ends: dict[Track, int] = {}
    found: dict[int, Track] = {}
    for event in sorted(cell.history, key=lambda event: event.begin):
        track = next(each for each in _candidates(event) if ends.get(each, 0) <= event.begin)
        ends[track] = event.end
        found[event.sequence] = track
    return found


def _candidates(event: EventRecord) -> Any:
    is_thread, key = event.device is None, event.thread if event.device is None else event.device
    return ((is_thread, key, lane) for lane in itertools.count())
