"""H5, H13: who waits for the dispatch of another thread goes on as soon as it ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers import DEADLINE

from hostcb._runtime import programs
from hostcb._runtime.programs import FastDispatch


class Told:
    """A lock that tells when somebody asks for it."""

    def __init__(self, lock: Any):
        self.lock, self.asked = lock, threading.Event()

    def acquire(self, timeout: float) -> bool:
        self.asked.set()
        return bool(self.lock.acquire(timeout=timeout))

    def release(self) -> None:
        self.lock.release()


@pytest.mark.contract("H5", "H13")
def test_the_end_of_a_fast_dispatch_wakes_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not find out at its next look alone."""
    monkeypatch.setattr(programs, "LOOK_AGAIN", 100 * DEADLINE)
    dispatch = FastDispatch(None)
    told = Told(dispatch.lock)
    monkeypatch.setattr(dispatch, "lock", told)
    waiter = threading.Thread(target=dispatch.wait, daemon=True)
    waiter.start()
    assert told.asked.wait(DEADLINE)
    dispatch.end()
    waiter.join(DEADLINE)
    assert not waiter.is_alive() and dispatch.is_set()


@pytest.mark.contract("D3")
def test_a_dispatch_that_has_ended_is_not_looked_for_on_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = FastDispatch(None)
    dispatch.end()
    monkeypatch.setattr(FastDispatch, "_is_around", lambda *_: pytest.fail("the stack is searched"))
    assert dispatch.is_set()
