"""H5, H22: a dictionary of the runtime may get and lose entries by other threads while a thread goes through it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hostcb._runtime.dispatch.programs import Program
from hostcb._runtime.observing import watching
from hostcb._runtime.observing.recording import Recording


class Watcher:
    """A trace, a profile or a count."""

    def around(self, host: Any, device: Any, arrays: Any, invoke: Any) -> Any:
        return invoke


@pytest.mark.contract("H22")
def test_what_begins_to_watch_while_another_does_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, first, second = watching.Watchers, Watcher(), Watcher()
    monkeypatch.setattr(watching, "on", None)
    monkeypatch.setattr(watching, "_watching", {})

    def made(watchers: Any) -> Any:
        # Another thread comes here, before this one has set `on`.
        watching._watching[second] = None
        return plain(watchers)

    monkeypatch.setattr(watching, "Watchers", made)
    watching.watch(first)
    assert watching.on is not None and [*watching.on._watchers] == [first, second]


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


class Recorder:
    """A trace that begins another one, as a thread may, when it is asked for its setting."""

    def __init__(self, recording: Any, begins: bool) -> None:
        self.recording, self.begins = recording, begins
        self.runs: list[Any] = []

    @property
    def values(self) -> bool:
        if self.begins:
            self.recording.recorders[Recorder(self.recording, False)] = "another"
        return False

    def ran(self, about: Any, run: Any, end: int) -> None:
        self.runs.append(run)


@pytest.mark.contract("H22")
def test_a_trace_may_begin_while_a_run_begins() -> None:
    recording: Any = Recording()
    recorders = [Recorder(recording, begins) for begins in (True, False)]
    recording.recorders = dict.fromkeys(recorders, "file")
    assert recording.around(SimpleNamespace(about=None), None, [], lambda: "result")() == "result"
    assert [len(each.runs) for each in recording.recorders] == [1, 1, 1]
