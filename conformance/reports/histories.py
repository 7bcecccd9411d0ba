"""The history of a cell as the lines of a table: one for each run of a callback's host function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEAD = ("", "where", "site", "value", "transforms", "began", "took")


@dataclass(frozen=True)
class Line:
    sequence: int
    where: str
    """The device; where callbacks do not receive theirs, the thread that ran them."""
    begin: int
    end: int
    """Nanoseconds since the first event."""
    site: str
    value: str
    """As JSON, which has no other way to write NaN in a page."""
    transforms: str

    @property
    def words(self) -> tuple[str, ...]:
        times = (f"{time / 1e3:.1f} µs" for time in (self.begin, self.end - self.begin))
        return (str(self.sequence), self.where, self.site, self.value, self.transforms, *times)


def lines(events: Sequence[Mapping[str, Any]]) -> list[Line]:
    start = min((event["begin"] for event in events), default=0)
    # A thread's id says nothing, and is larger than the exact integers of JavaScript.
    threads = list(dict.fromkeys(event["thread"] for event in events))
    return [
        Line(
            event["sequence"],
            f"thread {threads.index(event['thread']) + 1}" if event["device"] is None else f"device {event['device']}",
            event["begin"] - start,
            event["end"] - start,
            str(event["site"]),
            json.dumps(event["value"]),
            str(event["transforms"]),
        )
        for event in events
    ]
