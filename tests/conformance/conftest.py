"""The suite runs callbacks in processes of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_wheels import make_wheels
from suite_runs import PATH

from conformance.planning.cells import Plan
from conformance.planning.selection import CPU_DEVICE_COUNTS, plan_of


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Nothing is started here that a barrier of this process could wait for."""


@pytest.fixture(autouse=True)
def _fakes_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PATH)


@pytest.fixture(scope="session")
def cpu_plan() -> Plan:
    """The cells of one process that a usual run on the CPU has."""
    return plan_of(("hostcb", "jax"), "cpu", CPU_DEVICE_COUNTS)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheels(tmp_path_factory.mktemp("wheels") / "all")


@pytest.fixture
def sigint_reaches_programs() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored, and every program would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
