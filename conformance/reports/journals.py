"""Reads the journal of a run, which has an event as JSON in each line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any


def events_in(text: str) -> Iterator[dict[str, Any]]:
    """The events of the whole lines: a process may have been killed while it wrote the last one."""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                yield event
