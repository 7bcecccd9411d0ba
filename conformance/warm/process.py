"""Starts processes as forks of a server, each with the interface of `ending.Process`, as `subprocess.Popen` has it.

This module does not import JAX.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from ..spec.package import module
from .ending import Child, Process, can_watch, wait
from .environment import fixed

COLD = "HOSTCB_CONFORMANCE_COLD"
"""The environment variable that makes every process a fresh interpreter, if it is 1."""

PRELOADED = ("numpy", "jax", "jax.numpy", "absl.flags", "jax.experimental.multihost_utils", "jaxlib.mlir.dialects.mhlo")
"""The modules that a server imports before it forks: JAX, what JAX imports for a first program, and hostcb's flags."""

OF_THE_SUITE = ("worker.__main__", "cases.harness.child_programs", "implementations.jax")
"""Such modules of this package."""

START_DEADLINE = 120.0
LONGEST_ANSWER = 64

Streams: TypeAlias = tuple[int | IO[bytes], int | IO[bytes], int | IO[bytes]]
"""Standard input, output and error: a file, or as `subprocess` has it `PIPE` or `DEVNULL`."""


def start(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Streams,
    *,
    session: bool = False,
    python: Path | None = None,
) -> Process:
    """Start a program of the suite, which is the name of a module with a `main`; `session` makes it a session's leader.

    It is a fork where that makes no difference, and a fresh interpreter elsewhere, and wherever `python` is one.
    """
    imported = (*PRELOADED, *map(module, OF_THE_SUITE))
    if not python and (forked := fork(program, arguments, environment, imported, streams, session)):
        return forked
    stdin, stdout, stderr = streams
    return Child(
        [python or sys.executable, "-m", program, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**environment},
        start_new_session=session,
    )


def fork(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    imported: tuple[str, ...],
    streams: Streams,
    session: bool = False,
) -> Fork | None:
    """Run a program as a fork of a server that has imported these modules; None where no server can be."""
    if server := _server_for(environment, imported):
        try:
            return server.fork(program, arguments, environment, streams, session)
        except _NoForkError:
            server.close()
    return None


class _NoForkError(Exception):
    """The server is gone, or has never begun."""


class Fork:
    """A process that was forked from a server. It is the server's child, so the server reports its end."""

    def __init__(self, control: socket.socket, pipes: Mapping[int, int]) -> None:
        self._control = control
        self._ended = threading.Lock()
        control.settimeout(START_DEADLINE)
        try:
            # The server sends the process as well: its number may belong to another one by now.
            words, self._descriptors, _, _ = socket.recv_fds(control, LONGEST_ANSWER, 1)
        except OSError as error:
            raise _NoForkError from error
        if not words:
            raise _NoForkError
        self.pid = int(words)
        self.returncode: int | None = None
        self.stdin = os.fdopen(pipes[0], "wb") if 0 in pipes else None
        self.stdout = os.fdopen(pipes[1], "rb") if 1 in pipes else None

    def poll(self) -> int | None:
        return wait(self, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        # Another thread may wait as well.
        if not self._ended.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        try:
            if self.returncode is None:
                self._control.settimeout(None if until is None else max(0.0, until - time.monotonic()))
                try:
                    words = self._control.recv(LONGEST_ANSWER)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0) from None
                except OSError:
                    words = b""
                # The server ends its forks when it ends.
                self.returncode = int(words) if words else -signal.SIGKILL
                self._control.close()
                _close_each(self._descriptors)
            return self.returncode
        finally:
            self._ended.release()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptors[0], number)

    def kill(self) -> None:
        """The server kills what it has started, before it reaps it."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """The client's side of a server."""

    def __init__(
        self, environment: Mapping[str, str], connection: socket.socket, imported: tuple[str, ...] | None = None
    ) -> None:
        self.environment, self.folder = fixed(environment), os.getcwd()
        self._imported = imported
        """The modules that it has imported, if this process has started it. A fork uses its server, whatever it has."""
        self._connection = connection
        self._sending = threading.Lock()
        self.serves = True
        self.process: subprocess.Popen[bytes] | None = None
        """The server, if this process has started it."""
        self.forks: list[Fork] = []
        """Those that may still run."""

    def fits(self, environment: Mapping[str, str], imported: tuple[str, ...]) -> bool:
        return (
            self._imported in (None, imported) and self.environment == fixed(environment) and self.folder == os.getcwd()
        )

    def fork(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Streams,
        session: bool,
    ) -> Fork:
        request = {"program": program, "arguments": [*arguments], "environment": dict(environment)}
        words = json.dumps({**request, "folder": os.getcwd(), "session": session}).encode()
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as theirs:
            ours: dict[int, int] = {}
            unless_started.callback(lambda: _close_each(ours.values()))
            descriptors = [_stream(theirs, ours, number, wanted) for number, wanted in enumerate(streams)]
            control, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unless_started.callback(control.close)
            theirs.callback(told.close)
            try:
                with self._sending:
                    socket.send_fds(self._connection, [words], [*descriptors, told.fileno()])
            except OSError as error:
                raise _NoForkError from error
            # From here on, the control is at its end if the server is.
            theirs.close()
            fork = Fork(control, ours)
            unless_started.pop_all()
        self.forks = [*(one for one in self.forks if one.poll() is None), fork]
        return fork

    @property
    def idle(self) -> bool:
        return all(fork.poll() is not None for fork in self.forks)

    def close(self) -> None:
        """The server ends, and its forks with it."""
        self.serves = False
        self._connection.close()
        if self.process:
            self.process.communicate()


def _close_each(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _stream(theirs: contextlib.ExitStack, ours: dict[int, int], number: int, wanted: int | IO[bytes]) -> int:
    """The descriptor that is to have this number in the fork; the other end of a pipe is added to `ours`."""
    if not isinstance(wanted, int):
        return wanted.fileno()
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null
    reading, writing = os.pipe()
    ours[number], given = (reading, writing) if number else (writing, reading)
    theirs.callback(os.close, given)
    return given


_inherited: _Server | None = None
"""The server of which this process is a fork."""
_own: list[_Server] = []
"""The servers that this process has started."""
_finding = threading.Lock()


@atexit.register
def _close_all() -> None:
    while _own:
        _own.pop().close()


MOST_SERVERS = 2
"""A server takes as much memory as a worker. A run needs one."""


def inherit(connection: socket.socket, environment: Mapping[str, str]) -> None:
    """Called in a fork: from now on it asks its server for forks."""
    global _inherited
    _inherited = _Server(environment, connection)
    # Python warns of a socket that is open at its end.
    atexit.register(_inherited.close)


def is_fork() -> bool:
    return _inherited is not None


def _server_for(environment: Mapping[str, str], imported: tuple[str, ...]) -> _Server | None:
    """A server whose forks are what a fresh interpreter is in this environment."""
    if sys.platform != "linux" or environment.get(COLD) == "1" or not can_watch():
        return None
    if environment.get("JAX_PLATFORMS") != "cpu":
        # The plugin of another platform may start threads when it is imported.
        return None
    if _inherited:
        return _inherited if _inherited.serves and _inherited.fits(environment, imported) else None
    with _finding:
        for server in _own:
            if server.fits(environment, imported):
                # Where no server can be, none is started again and again.
                return server if server.serves else None
        if len(_own) >= MOST_SERVERS:
            idle = [server for server in _own if server.idle]
            if not idle:
                return None
            idle[0].close()
            _own.remove(idle[0])
        _own.append(_started(environment, imported))
        return _own[-1]


def _started(environment: Mapping[str, str], imported: tuple[str, ...]) -> _Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server", str(theirs.fileno()), *imported],
            # Like the streams of a fork, these are no files. Nobody writes to them or reads from them.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The linear algebra of NumPy would start threads when it is imported.
            env={"OPENBLAS_NUM_THREADS": "1", **fixed(environment)},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    server = _Server(environment, ours, imported)
    server.process = process
    return server
