"""A barrier waits again for a queue that has got taps of nested programs since the barrier joined it (H13)."""

from __future__ import annotations

import pytest

from hostcb._runtime.executions import barrier


class Queue:
    """It holds taps of programs that callbacks started. To join it runs them, and then another queue gets one."""

    def __init__(self, nested: int, then: Queue | None = None) -> None:
        self.nested, self.then, self.ran = nested, then, 0

    def is_pending(self) -> bool:
        return self.nested > 0

    has_nested = is_pending

    def join(self) -> None:
        self.ran, self.nested = self.ran + self.nested, 0
        if self.then is not None:
            self.then.nested += 1
            self.then = None


@pytest.mark.contract("H13")
def test_a_queue_gets_nested_taps_after_it_was_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Queue(1)
    last = Queue(1, then=first)
    monkeypatch.setattr(barrier.tracker, "live", list)
    monkeypatch.setattr(barrier.queues, "all", lambda: [first, last])
    barrier.wait_for_callbacks("test")
    assert (first.ran, last.ran) == (2, 1)
