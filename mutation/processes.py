"""Worker processes as forks of this one, which has imported JAX and pytest and not hostcb: a start takes no seconds.

A fork for cells sets the environment of its topology, and then runs the suite's own worker; `tester` runs tests. Both
find hostcb in the overlay. The server of `conformance.warm` could not start them: it has one environment.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

import jax

from conformance.engine.tasks import Task
from conformance.warm.ending import kill_group
from conformance.worker import __main__ as worker
from conformance.worker.process_group import ProcessGroup
from conformance.worker.processes import worker_environment
from conformance.worker.transport import LocalTransport


def fork_worker(work: Callable[[], None], log: Path) -> ProcessGroup:
    """A worker, for cells of a kind or for tests: a fork that calls `work`."""
    if "hostcb" in sys.modules:
        raise RuntimeError("this process has imported hostcb, so a fork of it could not import another one")
    return ProcessGroup("a fork", [LocalTransport(functools.partial(_Fork, work), log)])


class _Fork:
    """With the interface of `ending.Process`. It leads a group, which is killed before the process is reaped."""

    def __init__(self, work: Callable[[], None], log: IO[bytes]) -> None:
        read_commands, write_commands = os.pipe()
        read_reports, write_reports = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_worker(work, (read_commands, write_reports, log.fileno()))
        os.close(read_commands)
        os.close(write_reports)
        self.stdin, self.stdout = os.fdopen(write_commands, "wb"), os.fdopen(read_reports, "rb")
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or 0.0)
        while self._status is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                kill_group(self.pid)
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            elif time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            else:
                time.sleep(0.005)
        return self._status

    def send_signal(self, number: int) -> None:
        if self._status is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self._status is None:
            kill_group(self.pid)
            os.kill(self.pid, signal.SIGKILL)


def work_on_cells(task: Task, prepare: Callable[[], None]) -> None:
    """Be the suite's worker for cells of the kind of this one; `prepare` is called before it imports hostcb."""
    environment = worker_environment(task.topology, task.xla_flags, os.environ)
    os.environ.clear()
    os.environ.update(environment)
    # JAX has read these when it was imported.
    jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])
    jax.config.update("jax_cpu_enable_async_dispatch", environment.get("JAX_CPU_ENABLE_ASYNC_DISPATCH") != "0")
    prepare()
    sys.argv = ["worker", task.topology.name, task.implementation]
    worker.main()


def _become_worker(work: Callable[[], None], streams: tuple[int, int, int]) -> NoReturn:
    """In the fork: never return to what the other process was doing."""
    try:
        os.setsid()
        # A campaign in the background ignores it, and the cells are about it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, max(streams) + 64)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # The whole end of an interpreter is part of an outcome, and nothing of the other process's frames.
    ctypes.pythonapi.Py_Exit(status)
    raise AssertionError("unreachable")
