"""The end of a process that this one has started: by itself or at a deadline, with what it has started, and in words.

This module does not import JAX.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

ABORT_SECONDS = 5.0
"""A process that is aborted may write the stacks of its threads for so long."""

KILL_DEADLINE = 10.0
"""A killed process can outlast this only inside a driver call; then nobody waits for it."""

LONGEST = 1_000_000
"""So many bytes of what a process has written are read."""


class Process(Protocol):
    """A `Child`, or a fork of another process. What it has started ends with it, if it leads a group."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None:
        """Kill it, and all that it has started."""


def kill_group(leader: int) -> None:
    """Kill what this process has started. Nobody has reaped it yet, so that the number is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def watch(process: int) -> int | None:
    """A descriptor that can be read once this process has ended; None where there is none, as in some sandboxes."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def can_watch() -> bool:
    end = watch(os.getpid())
    if end is not None:
        os.close(end)
    return end is not None


class Child(subprocess.Popen[bytes]):
    """A process whose number gets no signal once it may be another one's.

    1. The process ends. Its number stays its own, and that of its group, until it is reaped.
    2. The group is killed.
    3. The process is reaped, and from then on nobody sends a signal to the number.

    Without `pidfd_open` nobody can wait for 1 alone: there the group is killed just after the process is reaped.
    """

    def __init__(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> None:
        self._reaping = threading.Lock()
        super().__init__(command, **options)

    def wait(self, timeout: float | None = None) -> int:
        with self._reaping:
            if self.returncode is not None:
                return self.returncode
            end = watch(self.pid)
        if end is None:
            status = super().wait(timeout)
            kill_group(self.pid)
            return status
        look = select.poll()
        look.register(end, select.POLLIN)
        try:
            if not look.poll(None if timeout is None else 1000 * max(0.0, timeout)):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        finally:
            os.close(end)
        with self._reaping:
            if self.returncode is None:
                kill_group(self.pid)
            return super().wait()

    def poll(self) -> int | None:
        return wait(self, 0.0)

    def kill(self) -> None:
        with self._reaping:
            if self.returncode is None:
                kill_group(self.pid)
                os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Ended:
    """The end of a program, and what it wrote before that."""

    status: int | None
    """Negative for a signal; None if it did not end before its deadline."""
    output: str
    errors: str

    @property
    def how(self) -> str:
        return how(self.status)

    @property
    def signal(self) -> str | None:
        return self.how if self.status is not None and self.status < 0 else None


def how(status: int | None) -> str:
    """The end of a process in words."""
    if status is None:
        return "no end"
    if status >= 0:
        return f"exit {status}"
    # Most real-time signals have no name.
    return next((one.name for one in signal.Signals if one == -status), f"signal {-status}")


def wait(process: Process, seconds: float) -> int | None:
    """The status of a process; None if it has not ended by then."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def end(process: Process, by: signal.Signals, seconds: float) -> None:
    """Ask a process to end by this signal, and kill it after this time."""
    try:
        process.send_signal(by)
        wait(process, seconds)
    finally:
        # Also if Ctrl-C comes meanwhile.
        process.kill()
    wait(process, KILL_DEADLINE)


def run(
    start: Callable[[IO[bytes], IO[bytes]], Process], deadline: float, by: signal.Signals = signal.SIGABRT
) -> Ended:
    """Run a program that may crash or hang. At its deadline it is ended by this signal, at which it may write stacks.

    `start` receives its standard output and error: files, and not pipes, since what the program has started may keep a
    pipe open for ever.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(output, errors)
        try:
            status = wait(process, deadline)
        finally:
            end(process, by, ABORT_SECONDS)
        return Ended(status, written(output), written(errors))


def written(file: IO[bytes], begin: int = 0) -> str:
    """What a process has written from here on: fatal messages come first, and stacks last."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size - begin
    if size <= LONGEST:
        return os.pread(descriptor, size, begin).decode(errors="replace")
    half = LONGEST // 2
    ends = os.pread(descriptor, half, begin) + os.pread(descriptor, half, begin + size - half)
    return ends.decode(errors="replace")
