"""Trace files, as Perfetto reads them."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any


class Trace:
    """A trace file, as Perfetto reads it."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = json.loads(path.read_text())
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.hand_overs = [event for event in self.slices if event["cat"] == "queue"]
        self.runs = sorted(
            (event for event in self.slices if event["cat"] != "queue"), key=lambda event: event["args"]["sequence"]
        )
        self.tracks = {event["tid"]: event["args"]["name"] for event in self.events if event["name"] == "thread_name"}

    def on(self, track: str) -> list[dict[str, Any]]:
        return [run for run in self.runs if self.tracks[run["tid"]] == track]

    def check(self) -> Trace:
        """Slices of a track nest, as Perfetto demands, and arrows begin and end in a slice of theirs."""
        for track in self.tracks:
            open_until: list[float] = []
            on_track = [event for event in self.slices if event["tid"] == track]
            for each in sorted(on_track, key=lambda event: (event["ts"], -event["dur"])):
                while open_until and open_until[-1] <= each["ts"]:
                    open_until.pop()
                end = each["ts"] + each["dur"]
                assert not open_until or end <= open_until[-1] + 1e-3, f"{each} overlaps another on {track}"
                open_until.append(end)
        arrows: dict[int, dict[str, Any]] = collections.defaultdict(dict)
        for event in self.events:
            if event["ph"] in "sf":
                assert event["ph"] not in arrows[event["id"]]
                arrows[event["id"]][event["ph"]] = event
                assert any(
                    each["tid"] == event["tid"] and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
                    for each in self.slices
                )
        for ends in arrows.values():
            assert ends["s"]["ts"] <= ends["f"]["ts"]
        self.arrows = len(arrows)
        return self
