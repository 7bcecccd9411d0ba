"""The history of a cell as a trace for Perfetto: JSON in Chrome's trace event format."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from ..oracle.enqueue_times import Enqueue
from .results import CellRecord, EventRecord

LONGEST_OPERAND = 600
"""A longer operand or witness is cut."""

Span: TypeAlias = EventRecord | Enqueue
"""What is a slice in the trace."""

Track: TypeAlias = tuple[bool, int, int]
"""Whether it is a thread's, the index of the device or the id of the thread, and its number among those of a device."""


def file_name(cell: CellRecord) -> str:
    return re.sub(r"[^\w.+=-]", "_", cell.id) + ".json"


def trace(cell: CellRecord) -> str:
    """One event a line."""
    return "[\n" + ",\n".join(json.dumps(event) for event in _events(cell)) + "\n]\n"


def _events(cell: CellRecord) -> list[dict[str, Any]]:
    platform = cell.id.split("/")[3].partition("-")[0]
    hand_overs = _hand_overs(cell)
    spans: tuple[Span, ...] = (*cell.history, *hand_overs)
    start = min((span.begin for span in spans), default=0)
    threads = list(dict.fromkeys(span.thread for span in spans))
    tracks = _tracks(spans)
    numbers = {track: number for number, track in enumerate(sorted(set(tracks.values())), 1)}
    made: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": cell.id}},
        {"ph": "M", "pid": 1, "name": "process_labels", "args": {"labels": cell.headline}},
    ]
    for (is_thread, key, nth), number in numbers.items():
        name = f"thread {threads.index(key) + 1}" if is_thread else f"{platform}:{key}"
        name += f" ({nth + 1})" if nth else ""
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        made.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})

    def place_of(span: Span) -> dict[str, Any]:
        return {"pid": 1, "tid": numbers[tracks[_key(span)]], "ts": (span.begin - start) / 1e3}

    for each, sites in hand_overs.items():
        dur = (each.end - each.begin) / 1e3
        name = f"hand over: {', '.join(sites)}"
        made.append({"ph": "X", "dur": dur, "cat": "hand-over", "name": name, **place_of(each)})
    in_witness = dict(cell.evidence)
    for event in cell.history:
        place = place_of(event)
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
        if event.handed_over:
            arrow = {"cat": "hand-over", "name": "tap", "id": event.sequence}
            made.append({"ph": "s", **arrow, **place_of(event.handed_over)})
            made.append({"ph": "f", "bp": "e", **arrow, **place})
    return made


def _hand_overs(cell: CellRecord) -> dict[Enqueue, list[str]]:
    """The hand-overs, and the sites of the runs that they led to."""
    found: dict[Enqueue, list[str]] = {}
    for event in cell.history:
        if event.handed_over:
            found.setdefault(event.handed_over, []).append(event.site)
    return found


def _key(span: Span) -> int | Enqueue:
    """What stands for a slice in dictionaries; an event has lists."""
    return span if isinstance(span, Enqueue) else span.sequence


def _tracks(spans: Iterable[Span]) -> dict[int | Enqueue, Track]:
    """The track of each slice. Slices of a track do not overlap, so a device may need several."""
    ends: dict[Track, int] = {}
    found: dict[int | Enqueue, Track] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        track = next(each for each in _candidates(span) if ends.get(each, 0) <= span.begin)
        ends[track] = span.end
        found[_key(span)] = track
    return found


def _candidates(span: Span) -> Iterator[Track]:
    """The thread did the hand-over, and a run whose device is not known; other runs are the device's."""
    device = None if isinstance(span, Enqueue) else span.device
    is_thread, key = device is None, span.thread if device is None else device
    return ((is_thread, key, nth) for nth in itertools.count())
