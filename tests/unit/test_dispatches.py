"""H5, H13: a dispatch ends with the call that makes it, and who waits for it in another thread goes on at once."""

from __future__ import annotations

import threading
from typing import Any

import jax
import pytest
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._runtime.dispatch import dispatches
from hostcb._runtime.dispatch.dispatches import Dispatch
from hostcb._runtime.dispatch.programs import Execution, Program
from hostcb._runtime.executions.executions import tracker


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
def test_the_end_of_a_dispatch_wakes_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not find out at its next look alone."""
    monkeypatch.setattr(dispatches, "LOOK_AGAIN", 100 * DEADLINE)
    dispatch = Dispatch()
    holders = [dispatch.held_by(threading.Event())]
    told = Told(dispatch._lock)
    monkeypatch.setattr(dispatch, "_lock", told)
    waiter = threading.Thread(target=dispatch.wait, daemon=True)
    waiter.start()
    assert told.asked.wait(DEADLINE) and not dispatch.has_ended()
    holders.clear()
    waiter.join(DEADLINE)
    assert not waiter.is_alive() and dispatch.has_ended()


@pytest.mark.contract("H5", "H13")
def test_who_waits_sees_the_end_before_the_holder_dies() -> None:
    """JAX then builds nodes of the user, which may wait for that thread."""
    dispatch = Dispatch()
    holder = dispatch.held_by(threading.Event())
    waiter = threading.Thread(target=dispatch.wait, daemon=True)
    waiter.start()
    dispatch.end()
    waiter.join(DEADLINE)
    assert not waiter.is_alive() and not holder.is_set()


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


@pytest.mark.contract("H13", "H18")
def test_of_dispatches_on_several_devices_that_raised_one_is_kept() -> None:
    """They may have begun on a device. JAX 0.10.2 ends the process for such a dispatch, so none is made here."""
    devices, program = tuple(jax.devices()[:2]), Program()
    for _ in range(5):
        execution = Execution(program, devices, devices, fast=True)
        execution.dispatch.around(lambda execution=execution: tracker.add(execution))
        execution.launched = True
    assert len([each for each in tracker.live() if each.program is program]) == len(program._executions) == 1
    hcb.barrier_wait()
    assert program.idle() and tracker.live() == []
