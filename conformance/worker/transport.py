"""One worker process, as the process that has started it sees it: commands go in, reports come out, and it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from ..warm import ending
from ..warm.process import start as start_process

WORKER = f"{__package__}.__main__"

_FATAL = re.compile(r"Fatal |F\d{4} |\d{4}-\d\d-\d\d [\d:.]+: F ")
"""Fatal messages come first. Python's start with "Fatal", the runtime's with F and the day, or with the time and F."""


@dataclass(frozen=True)
class Start:
    """How to start a worker; it holds what another machine can know."""

    arguments: Sequence[str]
    """Those of the worker."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that differ from those of the run."""
    absent: Sequence[str] = ()
    """Variables of the run that the process must not have."""


class Transport(Protocol):
    """A worker process. No method but `wait` waits for it."""

    @property
    def pid(self) -> int | None:
        """Its number on this machine; None if it is on another one."""

    def fileno(self) -> int:
        """What can be read from when there are reports, or when the process has ended."""

    def send(self, command: Mapping[str, Any]) -> None: ...

    def reports(self) -> list[dict[str, Any]] | None:
        """The reports that have come; None if the process has ended, and every report has been read."""

    def mark(self) -> None:
        """From here on, `written` is about the next cell."""

    def show_stacks(self) -> None: ...

    def finish(self) -> None:
        """Tell it that there are no further commands."""

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int | None:
        """Its exit status, negative for a signal; None if it has not ended."""

    def written(self) -> str:
        """What it has written on its standard error since the mark."""

    def close(self) -> None: ...


class Cluster(Protocol):
    """The hosts of a cluster's job, on each of which one process of a topology runs."""

    @property
    def coordinator_address(self) -> str:
        """Where JAX's processes meet, as HOST:PORT."""

    def start(self, starts: Sequence[Start]) -> Sequence[Transport]: ...


class LocalTransport:
    def __init__(self, start: Callable[[IO[bytes]], ending.Process], log: Path) -> None:
        """Start a process, which receives its standard error, and has pipes for its commands and its reports."""
        self._log = log
        with log.open("ab") as stderr:
            self._marked = stderr.tell()
            self._process = start(stderr)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._reports = self._process.stdin, self._process.stdout
        os.set_blocking(self._reports.fileno(), False)
        self._unread = b""

    @staticmethod
    def of(start: Start, log: Path, python: Path | None = None) -> LocalTransport:
        """Start a worker, by default with this process's own interpreter."""
        inherited = {name: value for name, value in os.environ.items() if name not in start.absent}
        environment = {**inherited, **start.environment}

        def begin(stderr: IO[bytes]) -> ending.Process:
            streams = subprocess.PIPE, subprocess.PIPE, stderr
            # Ctrl-C must reach only the run, which ends its workers itself.
            return start_process(WORKER, start.arguments, environment, streams, session=True, python=python)

        return LocalTransport(begin, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._reports.fileno()

    def send(self, command: Mapping[str, Any]) -> None:
        # The end of the process shows in its reports.
        with contextlib.suppress(OSError, ValueError):
            self._commands.write(json.dumps(command).encode() + b"\n")
            self._commands.flush()

    def reports(self) -> list[dict[str, Any]] | None:
        try:
            while received := os.read(self.fileno(), 1 << 16):
                self._unread += received
            ended = True
        except BlockingIOError:
            ended = False
        *lines, self._unread = self._unread.split(b"\n")
        found = [json.loads(line) for line in lines]
        return None if ended and not found else found

    def mark(self) -> None:
        self._marked = self._log.stat().st_size

    def show_stacks(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._commands.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float) -> int | None:
        return ending.wait(self._process, timeout)

    def written(self) -> str:
        with self._log.open("rb") as log:
            return ending.written(log, self._marked)

    def close(self) -> None:
        for pipe in (self._commands, self._reports):
            with contextlib.suppress(OSError):
                pipe.close()


def last_words(written: str) -> str:
    """The lines that say most about the end of a process: of an exception also its place."""
    # Marks below a line of the source say nothing without their columns.
    lines = [line.strip() for line in written.splitlines() if line.strip(" ^~")]
    fatal = [line for line in lines if _FATAL.match(line)]
    places = [line for line in lines if line.startswith('File "')][-1:]
    words = fatal[:2] or dict.fromkeys((*places, *lines[-2:]))
    return " | ".join(line[:400] for line in words) or "nothing on standard error"
