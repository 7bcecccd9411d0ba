"""The controller in the first pytest process of a run: it collects the results of all pytest processes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from ..cell_runner import WorkerStats
from ..conclusions import Conclusion
from ..tasks import Setup
from .items import MESSAGE

CONTROLLER = "conformance-controller"
"""The plugin's name, and the key of the messages between the controller and the workers."""


class Controller:
    __name__ = CONTROLLER
    """Under which pytest registers it, and the plugin looks it up."""

    def __init__(self, setup: Setup, concluded: Callable[[str, Conclusion], None]) -> None:
        self.setup = setup
        self.stats = WorkerStats()
        self.problems: list[str] = []
        """The problems of the run as a whole."""
        self.gaps: list[str] = []
        """Those problems that only say why cells did not run: a later run of these cells solves them."""
        self.deselected: set[str] = set()
        """The cells that pytest left out, as its options ask for."""
        self._concluded = concluded
        self.interrupted = False
        self._maxfail = 0
        self._failed = 0
        self._disturbed = False
        self._processes: list[int] = []

    def note(self, stats: WorkerStats) -> None:
        for topology, info in stats.run_info.items():
            self.stats.run_info.setdefault(topology, info)
        self.stats.exit_problems += stats.exit_problems
        self.stats.process_starts += stats.process_starts

    @property
    def stopped(self) -> str | None:
        """Why the run stopped early, if it did."""
        if not self._maxfail or self._failed < self._maxfail:
            return None
        return f"the run stopped after {self._failed} unexpected results, as -x or --maxfail of pytest asks for"

    def _collected(self, ids: Iterable[str]) -> None:
        self.deselected = {task.id for task in self.setup.tasks} - {one.partition("::")[2] for one in ids}

    def pytest_configure(self, config: pytest.Config) -> None:
        self._maxfail = config.getoption("maxfail")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected(item.nodeid for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed += report.failed
        if report.when in ("setup", "teardown") and not report.passed and not self._disturbed:
            # A cell has neither, so this comes from a plugin of the user. The first one is enough to find it.
            self._disturbed = True
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            words = reason.strip().splitlines() or ["no reason"]
            cell = report.nodeid.partition("::")[2]
            self.problems.append(f"a pytest plugin made the {report.when} of {cell} {report.outcome}: {words[-1]}")
        for name, value in report.user_properties:
            if name == MESSAGE and report.when == "call":
                self.read(json.loads(str(value)))

    def read(self, message: dict[str, Any]) -> None:
        """What one cell has shown, from a process that ran it."""
        self.note(WorkerStats(**message["stats"]))
        problem = message.get("no_start")
        # Every cell with the same problem reports it.
        if problem and problem not in self.gaps:
            self.gaps.append(problem)
        if conclusion := message.get("conclusion"):
            self._concluded(message["cell"], Conclusion.from_json(conclusion))

    # xdist ------------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[CONTROLLER] = pickle.dumps(self.setup)
        # The gateway has this information cached: xdist asks for it just before this hook.
        self._processes.append(node.gateway._rinfo().pid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if stats := getattr(node, "workeroutput", {}).get(CONTROLLER):
            self.note(pickle.loads(stats))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        # The cell runs in another process, so this end shows nothing about it.
        self.gaps.append(f"a pytest process ended while it ran {crashitem.partition('::')[2]}")

    def pytest_keyboard_interrupt(self) -> None:
        """End the other processes at once: their results so far are here, and their present cells may take minutes."""
        # xdist stops in this way, too.
        self.interrupted = not self.stopped
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
