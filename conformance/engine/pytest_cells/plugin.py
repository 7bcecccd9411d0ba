"""The pytest plugin, in every pytest process of a run: cells as items, and the role of the process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from .controller import CONTROLLER, Controller
from .items import CellsFile, CellsRun

CONFIGURATION = Path(__file__).with_name("cells.ini")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("help"):
        return
    # Other files hold no cells.
    config.args = [str(CONFIGURATION)]
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        setup = pickle.loads(workerinput[CONTROLLER])
        config.pluginmanager.register(CellsRunner(CellsRun(setup, workerinput["workerid"])))
        return
    controller = config.pluginmanager.getplugin(CONTROLLER)
    if not config.getoption("numprocesses", None):
        # There is no other process, so the controller runs the cells itself.
        config.pluginmanager.register(CellsRunner(CellsRun(controller.setup, "0"), controller))


class CellsRunner:
    def __init__(self, cells: CellsRun, controller: Controller | None = None) -> None:
        self._cells = cells
        self._controller = controller

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != CONFIGURATION:
            return None
        return CellsFile.from_parent(parent, path=file_path, nodeid="cells", cells=self._cells)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stats = self._cells.close(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[CONTROLLER] = pickle.dumps(stats)
        elif self._controller:
            self._controller.note(stats)
