"""The handler of a soak's signals, called here as the interpreter calls it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import jax
import pytest

from conformance.soak import disturbing
from conformance.soak.disturbing import Signals
from conformance.soak.record import Record, Run

pytestmark = pytest.mark.contract("C64")


class Always(Random):
    def random(self) -> float:
        return 0.0


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def signals(record: Record, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Run], None]], Signals]:
    monkeypatch.setattr(disturbing, "HANDLERS_TAP", True)
    # No timer: a signal would end pytest.
    monkeypatch.setattr(disturbing.signal, "setitimer", lambda *_: None)

    def make(tap: Callable[[Run], None]) -> Signals:
        made = Signals(0, record, None, jax.devices()[:1])
        monkeypatch.setattr(made, "_random", Always())
        monkeypatch.setattr(made._program, "tap", tap)
        return made

    return make


def test_a_signal_that_comes_late_does_nothing_while_all_must_be_here(
    record: Record, signals: Callable[[Callable[[Run], None]], Signals]
) -> None:
    """The timer is off by then, but its last signal was on its way to a thread that did not run."""
    tapped: list[int] = []
    made = signals(lambda run: tapped.append(run.number))
    with made.off():
        made._handle()
        record.judge()
    assert (tapped, made.count, record.anomalies) == ([], 0, [])
    made._handle()
    assert (len(tapped), made.count) == (1, 1)


def test_an_error_in_a_handler_is_told_whatever_it_interrupts(
    record: Record, signals: Callable[[Callable[[Run], None]], Signals]
) -> None:
    def tap(run: Run) -> None:
        raise RuntimeError("planted")

    signals(tap)._handle()
    (anomaly,) = record.anomalies
    assert anomaly.kind == "error"
    assert anomaly.witness.startswith("the handler of signal 1: Traceback")
    assert "RuntimeError: planted" in anomaly.witness
