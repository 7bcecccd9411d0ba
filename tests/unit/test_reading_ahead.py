"""H5, H11: records of a ring that were read ahead come one after another, and none is looked at again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, SupportsIndex

import pytest

from hostcb._runtime.queue.rings import MOST_READ, Ring

pytestmark = pytest.mark.contract("H5", "H11")


class Counted(list[int]):
    """Counts how often its items are looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        assert isinstance(place, SupportsIndex)
        self.looks += 1
        return super().__getitem__(place)


def test_each_record_is_found_without_a_look_at_those_before_it() -> None:
    ring: Any = Ring.__new__(Ring)
    records = [(7, 64 * number, 64 * number + 64) for number in range(MOST_READ)]
    ahead = Counted(number for record in records for number in record)
    ring._ahead, ring.counters = (ahead, 0), SimpleNamespace(head=0)
    for record in records:
        # A second look, by another thread, finds the same one.
        assert ring.oldest() == ring.oldest() == record
        ring.counters.head = record[2]
    assert ahead.looks < 16 * len(records)


def test_a_look_that_was_overtaken_begins_again() -> None:
    """Another thread has gone on, and this one has stored an older place."""
    ring: Any = Ring.__new__(Ring)
    ring.counters = SimpleNamespace(head=64)
    for place in (0, 3):
        ring._ahead = [7, 0, 64, 7, 64, 128, 7, 128, 192], place
        assert ring.oldest() == (7, 64, 128)
