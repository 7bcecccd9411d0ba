"""What the log says of a failure, and of a barrier that waits for long (H13, H14, H15, H19)."""

from __future__ import annotations

import logging
import threading
from typing import Any

import jax
import pytest
from helpers import DEADLINE

import hostcb as hcb
from hostcb._runtime import barrier


def failing(arg: Any, transforms: Any = None) -> Any:
    raise ValueError("failed on purpose")


@pytest.mark.contract("H14", "H15")
def test_the_log_says_whether_only_the_barrier_raises(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> str:
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()
        (one,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        caplog.clear()
        return one

    jax.block_until_ready(jax.jit(lambda x: hcb.id_tap(failing, x))(1.0))
    first, *rest = logged().splitlines()
    assert first.startswith("id_tap: failing (") and first.endswith("(the next barrier_wait raises it)")
    assert rest[0].startswith("Traceback")
    with pytest.raises(jax.errors.JaxRuntimeError, match="on purpose"):
        jax.jit(lambda x: hcb.call(failing, x, result_shape=x))(1.0)
    assert logged().splitlines()[0].endswith("on cpu:0, raised ValueError: failed on purpose (its computation ends)")


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
