"""H5, H22: a dictionary of the runtime may get and lose entries by other threads while a thread goes through it."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from hostcb._runtime.dispatch.programs import Program
from hostcb._runtime.observing import observers
from hostcb._runtime.observing.observers import Observer


@pytest.mark.contract("H22")
def test_what_begins_to_observe_while_another_does_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, first, second = observers.Observers, Observer(), Observer()
    monkeypatch.setattr(observers, "on", None)
    monkeypatch.setattr(observers, "_observing", {})

    def made(observing: Any) -> Any:
        # Another thread comes here, before this one has set `on`.
        observers._observing[second] = None
        return plain(observing)

    monkeypatch.setattr(observers, "Observers", made)
    observers.observe(first)
    assert observers.on is not None and [*observers.on.observers] == [first, second]


class Ended:
    """An execution that has ended, and that another thread drops just when this one looks at it."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def done(self) -> bool:
        self.program._executions.pop(self, None)
        return True


class Goes:
    """An execution that goes on."""

    mesh = (jax.devices()[0],)

    def done(self) -> bool:
        return False


@pytest.mark.contract("H5")
def test_an_execution_may_be_dropped_while_another_is_looked_for() -> None:
    program: Any = Program()
    ended, goes = Ended(program), Goes()
    program._executions, program._last = {ended: None, goes: None}, goes
    assert program.device_at(0) is Goes.mesh[0] and [*program._executions] == [goes]
