"""Load on the machine: processes that compute, so that threads are interrupted at more places and races show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
"""It ends with the pipe, and so with this process, however that ends."""


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep this many processes busy."""
    command = [sys.executable, "-S", "-E", "-c", _BUSY]
    busy = [subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.communicate()
