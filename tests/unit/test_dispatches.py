"""H5, H13: a dispatch ends with the call that makes it, and who waits for it in another thread goes on at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers import DEADLINE

from hostcb._runtime import dispatches
from hostcb._runtime.dispatches import Dispatch


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
@pytest.mark.parametrize("ends_by", ["its end", "its holder's death"])
def test_the_end_of_a_dispatch_wakes_who_waits_for_it(ends_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not find out at its next look alone."""
    monkeypatch.setattr(dispatches, "LOOK_AGAIN", 100 * DEADLINE)
    dispatch = Dispatch()
    holders = [dispatch.held_by(threading.Event())]
    told = Told(dispatch._lock)
    monkeypatch.setattr(dispatch, "_lock", told)
    waiter = threading.Thread(target=dispatch.wait, daemon=True)
    waiter.start()
    assert told.asked.wait(DEADLINE) and not dispatch.has_ended()
    dispatch.end() if ends_by == "its end" else holders.clear()
    waiter.join(DEADLINE)
    assert not waiter.is_alive() and dispatch.has_ended()


@pytest.mark.contract("H13")
def test_a_dispatch_that_raises_has_ended_while_its_exception_lives() -> None:
    dispatch, lasted = Dispatch(), []

    def call() -> None:
        lasted.append(not dispatch.has_ended())
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted") as caught:
        dispatch.around(call)
    assert lasted == [True] and dispatch.has_ended() and caught.value.__traceback__ is not None


@pytest.mark.contract("H13")
def test_a_dispatch_that_ended_by_itself_does_not_end_twice() -> None:
    """The death of the holder comes after its end, and finds nothing to do: pytest fails for an exception there."""
    dispatch = Dispatch()
    dispatch.around(dispatch.end)
    assert dispatch.has_ended()
    dispatch.wait()
