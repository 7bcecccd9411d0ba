"""H12, H13: a thread that waits for a function of a queue sleeps until one has ended, and goes on at once then."""

from __future__ import annotations

import threading

import pytest
from support.helpers import DEADLINE, wait_until

from hostcb._threads import progress
from hostcb._threads.progress import Progress


@pytest.mark.contract("H12", "H13")
def test_all_that_wait_sleep_until_they_are_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_AGAIN", 100 * DEADLINE)
    waited, steps = Progress(), list[str]()

    def wait() -> None:
        waited._wait_for_progress(lambda: False, timeout=100 * DEADLINE)
        steps.append("goes on")

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    wait_until(lambda: len(waited._waiting) == 2)
    # One that does not sleep ends now.
    waiters[0].join(0.05)
    steps.append("told")
    waited.tell()
    for waiter in waiters:
        waiter.join(DEADLINE)
    assert steps == ["told", "goes on", "goes on"]


@pytest.mark.contract("H12", "H13")
def test_who_has_enough_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_AGAIN", 100 * DEADLINE)
    waiter = threading.Thread(target=Progress()._wait_for_progress, args=(lambda: True, 100 * DEADLINE), daemon=True)
    waiter.start()
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
