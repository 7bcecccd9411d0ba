"""Reads the runs of user functions, and the hand-overs before them, from a file of `hostcb.trace`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..oracle.enqueue_times import Enqueue, TracedRun


def traced_runs(path: Path) -> list[TracedRun]:
    events = json.loads(path.read_text())
    (start,) = (event["args"]["monotonic_ns"] for event in events if event["name"] == "clock")
    slices = [event for event in events if event["ph"] == "X"]
    handed = {_place(each): Enqueue(*_span(each, start)) for each in slices if each["cat"] == "hand-over"}
    # An arrow begins where the slice of its hand-over begins, and ends where that of its run begins.
    begins = {event["id"]: handed.get(_place(event)) for event in events if event["ph"] == "s"}
    arrows = {_place(event): begins.get(event["id"]) for event in events if event["ph"] == "f"}
    return [TracedRun(*_span(each, start), arrows.get(_place(each))) for each in slices if each["cat"] != "hand-over"]


def _place(event: dict[str, Any]) -> tuple[int, float]:
    return event["tid"], event["ts"]


def _span(slice_: dict[str, Any], start: int) -> tuple[int, int, int]:
    """The thread, the begin and the end of a slice; the file has microseconds with three decimals."""
    begin = start + round(slice_["ts"] * 1000)
    return slice_["args"]["thread_id"], begin, begin + round(slice_["dur"] * 1000)
