"""Barriers that report failures at the same time: each failure is reported once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

from hostcb._errors import failures
from hostcb._errors.callback_exception import CallbackException
from hostcb._errors.failures import FailureLog

pytestmark = pytest.mark.contract("H13")


class Name(str):
    """A callback's name. When a report first looks it up, something comes between, as another thread may."""

    between: Callable[[], object] | None = None

    def __hash__(self) -> int:
        between, Name.between = Name.between, None
        if between is not None:
            between()
        return super().__hash__()


def record(log: FailureLog, *words: str) -> None:
    for word in words:
        log.record(Name("tap"), jax.devices()[0], ValueError(word), on_error="barrier")


def reported(log: FailureLog) -> list[str]:
    """What a barrier reports."""
    try:
        log.raise_if_any()
    except CallbackException as error:
        return [str(failure.exception) for failure in error.failures]
    return []


@pytest.fixture
def log() -> FailureLog:
    log = FailureLog()
    record(log, "first", "second")
    return log


def test_another_barrier_comes_first(log: FailureLog) -> None:
    others: list[str] = []
    Name.between = lambda: others.extend(reported(log))
    assert reported(log) == []
    assert others == ["first", "second"]


def test_a_failure_after_another_barrier_is_not_lost(log: FailureLog) -> None:
    others: list[str] = []

    def another_barrier_and_failures() -> None:
        others.extend(reported(log))
        record(log, "third", "fourth")

    Name.between = another_barrier_and_failures
    assert reported(log) == ["third", "fourth"]
    assert others == ["first", "second"]
    assert reported(log) == []


def test_a_failure_during_a_report_waits_for_the_next(log: FailureLog) -> None:
    Name.between = lambda: record(log, "third")
    assert reported(log) == ["first", "second"]
    assert reported(log) == ["third"]


def test_a_failure_for_which_another_is_dropped_is_not_lost(log: FailureLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT_FAILURES", 2)
    Name.between = lambda: record(log, "third")
    assert reported(log) == ["first", "second"]
    assert reported(log) == ["third"]
    assert reported(log) == []


def test_a_dropped_failure_counts(log: FailureLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT_FAILURES", 2)
    record(log, "third")
    with pytest.raises(CallbackException) as raised:
        log.raise_if_any()
    assert [str(failure.exception) for failure in raised.value.failures] == ["first", "third"]
    assert re.search("failed 3 times( in all)? since the last barrier", str(raised.value))


@pytest.mark.parametrize("on_error", [None, "barrier", "next_dispatch", "log"])
def test_a_failure_whose_text_is_interrupted_tells_whether_its_computation_has_ended(on_error: Any) -> None:
    class Ends(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    log = FailureLog()
    with pytest.raises(KeyboardInterrupt):
        log.record("call", None, Ends(), on_error=on_error)
    with pytest.raises(CallbackException) as reported:
        log.raise_if_any()
    (failure,) = reported.value.failures
    assert failure.ended is (on_error is None)
    assert failure.headline.startswith("callback: call raised ") and failure.headline.endswith(".Ends")
