"""How a consumer sleeps without the native extension (H11)."""

from __future__ import annotations

import types
from typing import Any

from hostcb._runtime.queue.consumers import Consumer


def test_a_bell_that_does_not_ring_is_no_error() -> None:
    queue: Any = types.SimpleNamespace(device="a device")
    consumer = Consumer(queue, None)
    assert not consumer.sleep(0.001)
    consumer.wake()
    assert consumer.sleep(0.001)
    assert not consumer.sleep(0.001), "each ring wakes it once"
