"""Runs cells: calls pytest, whose terminal shows how far the run is, and ensures that all processes end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ..expectations.entries import Expectations
from ..reports.journal import Journal
from ..spec.topology import WrongPlatformError
from ..worker.processes import WorkerStartError
from .cell_runner import CellRunner
from .conclusions import Conclusion, run_repeatedly
from .interrupts import terminated_like_interrupted
from .options import RESULTS, SELECTION, PytestOptionsError
from .pytest_cells import plugin, without_dots
from .pytest_cells.controller import CONTROLLER, Controller
from .pytest_cells.plugin import CONFIGURATION
from .tasks import Setup, in_running_order

ARGUMENTS = (
    *("-c", str(CONFIGURATION), "-p", plugin.__name__),
    # Not `no`, with which pytest does not show how many items are done. The processes of cells have their own streams.
    "--capture=sys",
    # The summary of the run describes what is unexpected.
    *("--no-header", "--tb=no", "-rN"),
    # The caller, which may itself be a pytest process, has its own fault handlers.
    *("-p", "no:faulthandler", "-p", "no:logging", "-p", "no:warnings"),
    *("-p", "no:threadexception", "-p", "no:unraisableexception"),
)


def execute(
    setup: Setup, workers: int, concluded: Callable[[str, Conclusion], None], *, quiet: bool = False
) -> Controller:
    """Run every task once, and call `concluded` for each as soon as it has a conclusion.

    This also returns after crashes of cells and processes, and after an interrupt. It raises `PytestOptionsError` if
    pytest refuses the user's own options for it. With `quiet`, pytest does not show how far it is.
    """
    workers = min(workers, len(setup.tasks))
    setup = replace(setup, tasks=tuple(in_running_order(setup.tasks, max(1, workers))))
    controller = Controller(setup, concluded)
    if not setup.tasks:
        return controller
    # Otherwise the name of each cell would begin with the way from the current folder to this one.
    arguments = [*ARGUMENTS, "--rootdir", os.getcwd(), "-o", f"cache_dir={_cache_of(setup)}"]
    if quiet:
        arguments += ["-qq", "-p", without_dots.__name__, "-p", "no:terminaldistreporter"]
    if workers > 1:
        arguments += ["-p", "xdist", "-n", str(workers), "--dist", "worksteal"]
    with _only_our_plugins(), terminated_like_interrupted():
        code = _pytest([*arguments, *setup.options.pytest_options], controller)
    if controller.interrupted:
        controller.gaps.append("the run was interrupted")
    elif not controller.stopped and code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        controller.gaps.append(f"pytest ended with {code!r}")
    if not controller.interrupted and not controller.stopped:
        _run_lost(controller, concluded)
    return controller


def _pytest(arguments: list[str], controller: Controller) -> int | pytest.ExitCode:
    try:
        code = pytest.main(arguments, plugins=[_Named(controller)])
    except ImportError as error:
        # A plugin that `-p` names.
        raise PytestOptionsError(f"pytest refuses the options after `--`: {error}") from error
    if code == pytest.ExitCode.USAGE_ERROR and controller.setup.options.pytest_options:
        raise PytestOptionsError("pytest refuses the options after `--`, and says why above")
    return code


def _cache_of(setup: Setup) -> Path:
    """The folder of pytest's cache for `--lf`: chosen cells have that of the full run."""
    logs = setup.logs
    return (RESULTS.resolve() if logs == SELECTION.resolve() else logs) / ".pytest_cache"


class _Named:
    """Registers the controller under the name that the plugin looks up."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self._controller, CONTROLLER)


def _run_lost(controller: Controller, concluded: Callable[[str, Conclusion], None]) -> None:
    """Run the cells whose pytest process ended while it ran them: its end shows nothing about the cells."""
    setup = controller.setup
    lost = [task for task in setup.tasks if task.id in controller.lost]
    if not lost:
        return
    journal = Journal(setup.journal)
    runner = CellRunner(setup.logs / "worker-lost.log", journal, cluster=setup.cluster)
    repeat = setup.options.repeat
    for task in lost:
        controller.problems.append(f"a pytest process ended while it ran {task.id}, which was run again")
        with contextlib.suppress(WorkerStartError, WrongPlatformError):
            if repeat > 1:
                concluded(task.id, run_repeatedly(task, runner, setup.expectations or Expectations(), repeat))
            else:
                concluded(task.id, Conclusion(runner.run_alone(task), attempts=2))
    runner.finish()
    controller.note(runner.take_stats())
    journal.close()


@contextlib.contextmanager
def _only_our_plugins() -> Iterator[None]:
    """Turn off other installed plugins and the user's pytest options: they may reorder, repeat or end items."""
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
