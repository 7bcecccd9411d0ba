"""A run that was started by pytest's own command line, for its options: `-x`, `--lf`, `-v`, `--durations`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from ..planning.keywords import matcher
from ..reports.report import Report
from ..spec.topology import WrongPlatformError
from .controller import Controller
from .locking import FolderLock
from .preparation import UNUSABLE_BECAUSE, prepare
from .selections import choose_folder


class DirectRun:
    """A plugin of the controlling process: it writes what the command `run` writes."""

    def __init__(self, config: pytest.Config, workers: int) -> None:
        self._held = ExitStack()
        try:
            choose_folder(config.option, [config.option.keyword] if config.option.keyword else [])
            lock = self._held.enter_context(FolderLock(config.option.results))
            # Otherwise each pytest process would fail on a wrong expression.
            if config.option.keyword:
                matcher(config.option.keyword)
            self._run = prepare(config.option)
            lock.acquire()
            setup = self._run.setup(workers)
        except (*UNUSABLE_BECAUSE, WrongPlatformError) as error:
            self._held.close()
            raise pytest.UsageError(str(error)) from error
        self.controller = Controller(setup, self._run.concluded)
        self._load = ExitStack()
        self._selected: set[str] = set()
        self._report: Report | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Not earlier: pytest may end before it runs anything."""
        if not session.config.getoption("collectonly"):
            self._load.enter_context(self._run.load())

    def pytest_unconfigure(self) -> None:
        self._load.close()
        self._held.close()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._selected.update(item.name for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._selected.update(cell.partition("::")[2] for cell in ids)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if session.config.getoption("collectonly"):
            return
        deselected = {task.id for task in self.controller.setup.tasks} - self._selected
        try:
            self._report = self._run.finish(self.controller, deselected)
        except WrongPlatformError as error:
            raise pytest.UsageError(str(error)) from error
        # The codes of a run in which nothing ran would be pytest's own errors.
        if exitstatus == pytest.ExitCode.OK and self._report.exit_code in (1, 2):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._report:
            terminalreporter.section("conformance")
            terminalreporter.write_line(self._report.summary())
