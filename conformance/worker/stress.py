"""Load on the machine: busy processes, one for each core. Races between threads need it to show.

    with stress():
        ...

This module does not import JAX. As a program it is one busy process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from .parent import end_with_parent


@contextlib.contextmanager
def stress(processes: int | None = None) -> Iterator[list[int]]:
    """Keep this many processes busy, by default one for each core that this process may use; yields their ids.

    They end with the block. If this process is killed, they end with it: each waits for the end of its standard input,
    and on Linux the system ends it.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes or _usable_cores()):
            command = [sys.executable, "-m", f"{__package__}.stress"]
            # Ctrl-C must reach only the run, which ends these itself.
            started.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
            )
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _be_busy() -> None:
    end_with_parent()
    threading.Thread(target=_end_with_input, daemon=True).start()
    while True:
        pass


if __name__ == "__main__":
    _be_busy()
