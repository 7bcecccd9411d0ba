"""Runs cells: calls pytest, and sees to it that everything comes to an end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from conformance.engine.cell_runner import CellRunner
from conformance.engine.conclusions import Conclusion
from conformance.engine.controller import CONTROLLER, Controller
from conformance.engine.tasks import Setup, in_running_order
from conformance.journal import Journal
from conformance.processes import WorkerStartError
from conformance.topology import WrongPlatformError

ARGUMENTS = (
    *("-c", str(Path(__file__).with_name("cells.ini"))),
    # A run has its own progress and summary, on the streams that it was started with.
    *("-p", "no:terminal", "--capture=no"),
    # Caches and fault handlers are the business of whoever calls this, and may belong to a pytest, too.
    *("-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:logging", "-p", "no:warnings"),
    *("-p", "no:threadexception", "-p", "no:unraisableexception"),
)


def execute(setup: Setup, workers: int, concluded: Callable[[str, Conclusion], None]) -> Controller:
    """Run every task once, and tell of each as soon as it is known.

    This returns whatever happens to cells and processes, an interrupt included.
    """
    setup = replace(setup, tasks=tuple(in_running_order(setup.tasks)))
    controller = Controller(setup, concluded)
    if not setup.tasks:
        return controller
    workers = min(workers, len(setup.tasks))
    arguments = [*ARGUMENTS]
    if workers > 1:
        arguments += ["-p", "xdist", "-n", str(workers), "--dist", "worksteal"]
    with _only_our_plugins(), _terminated_like_interrupted():
        code = pytest.main(arguments, plugins=[_Named(controller)])
    if controller.interrupted:
        controller.problems.append("the run was interrupted")
    elif code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        controller.problems.append(f"pytest ended with {code!r}")
    if not controller.interrupted:
        _run_lost(controller, concluded)
    return controller


class _Named:
    """Registers the controller under the name by which the plugin finds it."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self._controller, CONTROLLER)


def _run_lost(controller: Controller, concluded: Callable[[str, Conclusion], None]) -> None:
    """Run the cells whose pytest process ended under them, which says nothing of the cells."""
    setup = controller.setup
    lost = [task for task in setup.tasks if task.id in controller.lost]
    if not lost:
        return
    journal = Journal(setup.journal)
    runner = CellRunner(setup.logs / "worker-lost.log", journal)
    for task in lost:
        controller.problems.append(f"a pytest process ended while it ran {task.id}, which was run again")
        with contextlib.suppress(WorkerStartError, WrongPlatformError):
            concluded(task.id, Conclusion(runner.run_alone(task), attempts=2))
    controller.note(runner.learnt())
    journal.close()


@contextlib.contextmanager
def _only_our_plugins() -> Iterator[None]:
    """Keep out what else is installed and what the user wants of other tests: it may reorder, repeat or end items."""
    names = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM, by which batch systems end a job, keep what was learnt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
