"""The suite runs callbacks in processes of its own."""

from __future__ import annotations

import pwd
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Nothing is started here that a barrier of this process could wait for."""


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is started with the id of a user it does not know."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.fixture
def sigint_reaches_programs() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored, and every program would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
