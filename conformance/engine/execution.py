"""Runs cells: calls pytest, whose terminal shows how far the run is, and ensures that all processes end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from .conclusions import Conclusion
from .interrupts import terminated_like_interrupted
from .options import RESULTS, SELECTION, PytestOptionsError
from .pytest_cells import plugin
from .pytest_cells.controller import Controller
from .pytest_cells.plugin import CONFIGURATION
from .pytest_cells.progress import Progress
from .tasks import Setup, in_running_order

VERBOSE = ("-v", "-vv", "-vvv", "--verbose")
"""Options with which pytest has a line for each cell."""

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


def execute(setup: Setup, workers: int, concluded: Callable[[str, Conclusion], None]) -> Controller:
    """Run every task once, and call `concluded` for each as soon as it has a conclusion.

    This also returns after crashes of cells and processes, and after an interrupt. It raises `PytestOptionsError` if
    pytest refuses the user's own options for it.
    """
    workers = min(workers, len(setup.tasks))
    setup = replace(setup, tasks=tuple(in_running_order(setup.tasks, max(1, workers))))
    controller = Controller(setup, concluded)
    if not setup.tasks:
        return controller
    # Otherwise the name of each cell would begin with the way from the current folder to this one.
    arguments = [*ARGUMENTS, "--rootdir", os.getcwd(), "-o", f"cache_dir={_cache_of(setup)}"]
    plugins: list[object] = [controller]
    if not (sys.stdout.isatty() or {*VERBOSE} & {*setup.options.pytest_options}):
        arguments += ["-qq", "-p", "no:terminaldistreporter"]
        plugins.append(Progress(len(setup.tasks), workers))
    if workers > 1:
        arguments += ["-p", "xdist", "-n", str(workers), "--dist", "worksteal"]
    with _only_our_plugins(), terminated_like_interrupted():
        code = _pytest([*arguments, *setup.options.pytest_options], plugins)
    if controller.interrupted:
        controller.gaps.append("the run was interrupted")
    elif not controller.stopped and code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        controller.gaps.append(f"pytest ended with {code!r}")
    return controller


def _pytest(arguments: list[str], plugins: Sequence[object]) -> int | pytest.ExitCode:
    try:
        code = pytest.main(arguments, plugins=plugins)
    except ImportError as error:
        # A plugin that `-p` names.
        raise PytestOptionsError(f"pytest refuses the options after `--`: {error}") from error
    if code == pytest.ExitCode.USAGE_ERROR:
        raise PytestOptionsError("pytest refuses the options after `--`, and says why above")
    return code


def _cache_of(setup: Setup) -> Path:
    """The folder of pytest's cache for `--lf`: chosen cells have that of the full run."""
    logs = setup.logs
    return (RESULTS.resolve() if logs == SELECTION.resolve() else logs) / ".pytest_cache"


@contextlib.contextmanager
def _only_our_plugins() -> Iterator[None]:
    """Turn off other installed plugins and the user's pytest options: they may reorder, repeat or end items."""
    with mock.patch.dict(os.environ):
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            os.environ.pop(name, None)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        yield
