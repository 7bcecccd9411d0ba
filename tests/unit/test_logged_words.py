"""What the log says of a failure, and of a barrier that waits for long (H13, H14, H15, H19)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._errors import repeats
from hostcb._runtime.executions import barrier


def failing(arg: Any, transforms: Any = None) -> Any:
    raise ValueError("failed on purpose")


@pytest.mark.contract("H14", "H15")
def test_the_log_says_whether_only_the_barrier_raises(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a count the devices that fail together have one line, however long they take.
    monkeypatch.setattr(repeats, "SECONDS_BETWEEN_COUNTS", math.inf)

    def logged() -> list[str]:
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()
        lines = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        caplog.clear()
        return lines

    jax.block_until_ready(jax.jit(lambda x: hcb.id_tap(failing, x))(1.0))
    (line,) = logged()
    assert line.startswith("id_tap: failing (") and line.endswith("(the next barrier_wait raises it)")
    assert "\n" not in line, "the barrier has the traceback"
    with pytest.raises(jax.errors.JaxRuntimeError, match="on purpose"):
        jax.jit(lambda x: hcb.call(failing, x, result_shape=x))(1.0)
    assert logged() == [], "the program has raised it"
    with pytest.raises(jax.errors.JaxRuntimeError, match="on purpose"):
        jax.block_until_ready(jax.pmap(lambda x: hcb.call(failing, x, result_shape=x))(np.ones(1, np.float32)))
    assert logged() == []
    # On several devices nothing raises it if the program has no result, and the runtime may end the process before.
    jax.block_until_ready(jax.pmap(lambda x: hcb.debug.callback(failing, x))(np.ones(2, np.float32)))
    (line,) = logged()
    assert line.endswith(
        "raised ValueError: failed on purpose (its computation ends; if another device waits for this one, as in psum, "
        "XLA ends the process, on CPUs after a minute)"
    )
    # Over a mesh they end together.
    x = jax.device_put(np.ones(2), jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P("d")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="on purpose"):
        jax.block_until_ready(jax.jit(lambda x: hcb.call(failing, x, result_shape=x))(x))
    (line,) = logged()
    assert line.endswith("raised ValueError: failed on purpose (its computation ends)")


@pytest.mark.contract("H19")
def test_a_barrier_that_waits_for_long_warns_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "REPORT_INTERVAL", 0.01)
    gate, words = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING:
                words.append(record.getMessage())
                if len(words) == 2:
                    gate.set()

    def the_stuck_callback(arg: Any, transforms: Any) -> None:
        gate.wait(DEADLINE)

    handler, logger = Handler(), logging.getLogger("hostcb")
    logger.addHandler(handler)
    try:
        hcb.id_tap(the_stuck_callback, 1.0)
        hcb.barrier_wait("stuck barrier")
    finally:
        logger.removeHandler(handler)
    assert len(words) >= 2, "a barrier that waits should say so"
    assert all("stuck barrier" in each and "still waiting" in each for each in words)
    assert "the_stuck_callback" in words[0]


class _Warnings(logging.Handler):
    """Counts warnings, and reports the first."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            self.words.append(record.getMessage())
            self.told.set()


@pytest.fixture
def warnings_of_barriers(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Warnings]:
    monkeypatch.setattr(barrier, "REPORT_INTERVAL", 0.01)
    handler = _Warnings()
    logging.getLogger("hostcb").addHandler(handler)
    yield handler
    logging.getLogger("hostcb").removeHandler(handler)


@pytest.mark.contract("H19")
def test_a_barrier_that_waits_for_a_program_warns_as_well(warnings_of_barriers: _Warnings) -> None:
    def held(operand: Any) -> Any:
        warnings_of_barriers.told.wait(DEADLINE)
        return operand

    result = jax.pmap(lambda x: hcb.call(held, x, result_shape=x), devices=jax.devices()[:2])(np.ones(2, np.float32))
    hcb.barrier_wait("for a program")
    jax.block_until_ready(result)
    assert any("for a program" in each for each in warnings_of_barriers.words)


@pytest.mark.contract("H19")
def test_a_barrier_that_an_exception_has_ended_warns_no_more(warnings_of_barriers: _Warnings) -> None:
    class EndedError(Exception):
        pass

    with pytest.raises(EndedError), barrier._reporting("ended", worthwhile=True):
        assert warnings_of_barriers.told.wait(DEADLINE)
        raise EndedError
    # Its thread has seen the end when it is gone.
    for thread in threading.enumerate():
        if thread.name == "hostcb-barrier-report":
            thread.join(DEADLINE)
            assert not thread.is_alive()


@pytest.mark.contract("H14")
def test_a_filter_that_raises_ends_no_tap() -> None:
    seen: list[float] = []

    def raises(record: logging.LogRecord) -> bool:
        raise LookupError("a filter of the program's log")

    def fails(value: Any, transforms: Any) -> None:
        seen.append(float(value))
        raise ValueError

    logger = logging.getLogger("hostcb")
    logger.addFilter(raises)
    try:
        for number in range(3):
            hcb.id_tap(fails, np.float32(number))
        with pytest.raises(hcb.CallbackException) as reported:
            hcb.barrier_wait()
    finally:
        logger.removeFilter(raises)
    assert seen == [0, 1, 2]
    assert [type(each.exception) for each in reported.value.failures].count(ValueError) == 3
