"""Runs the commands that make environments, so that an interrupt ends them with all that they have started.

Also tells whether a process that has left something behind still runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .release import ReleaseError


class InterruptedCommandError(ReleaseError):
    """The command was ended, or not started, since nobody waits for its result any more."""


_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()
_refused = False


def run(
    command: Sequence[str | Path], *, deadline: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return what it wrote.

    Raises `subprocess.TimeoutExpired`, and `InterruptedCommandError` within `refusing`.
    """
    with _lock:
        _refuse()
        # A group of its own: pip and uv start processes, too.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _running.add(process)
    with process:
        try:
            output, errors = process.communicate(timeout=deadline)
        except BaseException:
            _kill(process)
            raise
        finally:
            with _lock:
                _running.discard(process)
    with _lock:
        _refuse()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """End the commands that other threads run, and let none start: then those threads soon end."""
    global _refused
    with _lock:
        _refused = True
        for process in _running:
            _kill(process)
    try:
        yield
    finally:
        with _lock:
            _refused = False


def _refuse() -> None:
    if _refused:
        raise InterruptedCommandError("the installation was interrupted")


def _kill(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def alive(process: int) -> bool:
    """Whether there is a process of this number, of any user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
