"""Records which lines of hostcb a process runs, in all its threads, also in those that Python did not start.

`sys.monitoring` reports a line once, and after `begin` once more. A line of the file is written at once, so a process
that crashes has reported what it ran.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

FOLDER = "HOSTCB_LINES"
"""The folder of the files: one for each process."""
CELL = "HOSTCB_LINES_CELL"
"""The cell or test whose process this is, for a process that a worker has started."""
PACKAGE = "HOSTCB_LINES_PACKAGE"
"""The folder of the package."""

_monitoring: Any = vars(sys).get("monitoring")
can_record = _monitoring is not None
_file = -1
_package = ""


def start() -> None:
    """Record from now on, if the environment asks for it."""
    global _file, _package
    _package = os.path.join(os.environ.get(PACKAGE, ""), "")
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    _file = os.open(os.path.join(folder, f"{os.getpid()}.lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    begin(os.environ.get(CELL, "import"))
    events, tool = _monitoring.events, _monitoring.COVERAGE_ID
    _monitoring.use_tool_id(tool, "hostcb_lines")
    _monitoring.register_callback(tool, events.PY_START, _begin_function)
    _monitoring.register_callback(tool, events.LINE, _line)
    _monitoring.set_events(tool, events.PY_START)


def begin(cell: str) -> None:
    """What runs from now on belongs to this cell or test, in the processes that this one starts, too."""
    os.environ[CELL] = cell
    os.write(_file, f"@{cell}\n".encode())
    _monitoring.restart_events()


class Commands:
    """The standard input of a worker: each command that it reads begins a cell."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    def __iter__(self) -> Any:
        # Processes that only record need no JSON.
        import json

        for line in self._lines:
            begin(json.loads(line)["cell"])
            yield line


def _begin_function(code: CodeType, offset: int) -> object:
    if _module_of(code):
        _monitoring.set_local_events(_monitoring.COVERAGE_ID, code, _monitoring.events.LINE)
    return _monitoring.DISABLE


def _line(code: CodeType, number: int) -> object:
    os.write(_file, f"{_module_of(code)}:{number}\n".encode())
    return _monitoring.DISABLE


def _module_of(code: CodeType) -> str:
    """The path of a module of hostcb in the package; empty for other code."""
    return code.co_filename[len(_package) :] if code.co_filename.startswith(_package) else ""
