"""A pytest plugin: the outcome of each test, and how many callbacks hostcb ran in it.

`pytest -p record_tests --record FILE` writes a line of JSON for each test as it ends, so a process that crashes leaves
the lines of the tests before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The worst of a test's setup, call and teardown is its outcome.
ORDER = ("passed", "skipped", "failed")


def callbacks() -> int:
    """How many callbacks hostcb has run in this process; none unless it is installed in JAX's place."""
    if not os.environ.get("HOSTCB_INSTALL"):
        return 0
    import hostcb

    return sum(each.taps_run + sum(each.calls.values()) for each in hostcb.stats().devices.values())


class Recorder:
    """Writes the outcome of each test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.outcomes = []
        before = callbacks()
        result = yield
        outcome = max(self.outcomes, key=ORDER.index)
        line = {"test": item.nodeid, "outcome": outcome, "callbacks": callbacks() - before}
        with self.path.open("a") as file:
            print(json.dumps(line), file=file)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.outcomes.append(report.outcome)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, required=True, help="the file of the outcomes")


def pytest_configure(config: pytest.Config) -> None:
    # Counting begins before the first callback is compiled.
    callbacks()
    config.pluginmanager.register(Recorder(config.getoption("--record")))
