"""A pytest plugin that turns off the dots and xdist's lines: in a log they say nothing, and the suite has its own."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # xdist then does as without a terminal.
    if distributing := session.config.pluginmanager.getplugin("dsession"):
        distributing.terminal = None


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus() -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
    category, _, _ = yield
    return category, "", ""
