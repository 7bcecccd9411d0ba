"""The check of `case.serialized` and `case.exported`: no plan of hostcb's callbacks can break JAX's own refusal."""

from __future__ import annotations

import pytest

from conformance.cases.lifetimes.executables import check_refused

pytestmark = pytest.mark.contract("C4")


def refuse(text: str) -> None:
    raise TypeError(text)


def test_a_refusal_that_names_the_callback_is_right() -> None:
    assert check_refused(lambda: refuse("a program with a host Callback cannot be serialized"), "exported") == []


@pytest.mark.parametrize("text", ["", "cannot pickle '_thread.RLock' object"])
def test_a_refusal_without_a_reason_is_a_poor_error(text: str) -> None:
    (anomaly,) = check_refused(lambda: refuse(text), "exported a function")
    assert anomaly.kind == "poor error"


def test_what_is_accepted_is_reported() -> None:
    (anomaly,) = check_refused(lambda: b"serialized", "exported a function")
    assert anomaly.kind == "not refused" and "exported a function" in str(anomaly)
