"""Worker processes as forks of this one, which has imported JAX and pytest and not hostcb: a start takes no seconds.

A fork for cells sets the environment of its topology, and then runs the suite's own worker; `tester` runs tests. Both
find hostcb in the overlay.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax

from conformance.engine.tasks import Task
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.worker import __main__ as worker
from conformance.worker.processes import worker_environment

START_SECONDS = 60.0
EXIT_SECONDS = 20.0


class ForkedWorker:
    """One worker, for cells of a kind or for tests; `run` never raises because one of them crashes or hangs."""

    def __init__(self, work: Callable[[], None], log: Path) -> None:
        """Start the worker: a fork that calls `work`."""
        if "hostcb" in sys.modules:
            raise RuntimeError("this process has imported hostcb, so a fork of it could not import another one")
        read_commands, self._commands = os.pipe()
        self._reports, write_reports = os.pipe()
        self._unread = b""
        self.status: int | None = None
        """How the process ended, as `os.waitstatus_to_exitcode` returns it; None while it runs."""
        self._pid = os.fork()
        if self._pid == 0:
            _become_worker(work, (read_commands, write_reports), log)
        os.close(read_commands)
        os.close(write_reports)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reports, selectors.EVENT_READ)
        ready = self._read_line(START_SECONDS)
        self.ready = ready is not None and ready["event"] == "ready"

    def run(self, name: str, deadline: float) -> Outcome:
        """Run the cell or the test with this id."""
        started = time.monotonic()
        try:
            os.write(self._commands, f"{name}\n".encode())
        except BrokenPipeError:
            return self._ended_early(started)
        while True:
            line = self._read_line(started + deadline - time.monotonic())
            if line is None:
                return self._ended_early(started)
            if line["event"] == "end" and line["cell"] == name:
                return Outcome.from_json(line["outcome"])

    def finish(self) -> Outcome:
        """Let the process end by itself: its end is an outcome, too."""
        os.close(self._commands)
        self._commands = -1
        if self._wait(EXIT_SECONDS):
            verdict = Verdict.PASS if self.status == 0 else Verdict.CRASH
            outcome = Outcome(verdict, Stage.EXIT, "" if self.status == 0 else f"it ended with {self._how}")
        else:
            outcome = Outcome(Verdict.HANG, Stage.EXIT, f"it did not end within {EXIT_SECONDS:.0f} s")
        self.kill()
        return outcome

    def kill(self) -> None:
        if self.status is None:
            # Its own session has the processes that it has started, too.
            os.killpg(self._pid, signal.SIGKILL)
            self._wait(EXIT_SECONDS)
        self._selector.close()
        for end in (self._commands, self._reports):
            if end >= 0:
                os.close(end)
        self._commands = self._reports = -1

    @property
    def _how(self) -> str:
        assert self.status is not None
        return signal.Signals(-self.status).name if self.status < 0 else f"exit {self.status}"

    def _ended_early(self, started: float) -> Outcome:
        """The outcome of a cell or test whose process has ended, or has reported nothing for too long."""
        if self._wait(1.0):
            return Outcome(Verdict.CRASH, None, f"the process ended with {self._how}", signal=self._how)
        return Outcome(Verdict.HANG, None, f"no answer for {time.monotonic() - started:.0f} s")

    def _wait(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                return False
            else:
                time.sleep(0.005)
        return True

    def _read_line(self, timeout: float) -> dict[str, Any] | None:
        """The next report; None after the end of the pipe or the timeout."""
        end = time.monotonic() + timeout
        while b"\n" not in self._unread:
            if not self._selector.select(max(0.0, end - time.monotonic())):
                return None
            received = os.read(self._reports, 1 << 16)
            if not received:
                return None
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report


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
    # As the engine asks a worker for a cell.
    commands: Any = (json.dumps({"do": "run", "cell": line.strip()}) for line in sys.stdin)
    sys.stdin = commands
    worker.main()


def _become_worker(work: Callable[[], None], pipes: tuple[int, int], log: Path) -> NoReturn:
    """In the fork: never return to what the other process was doing."""
    try:
        os.setsid()
        # A campaign in the background ignores it, and the cells are about it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, end in enumerate((*pipes, written)):
            os.dup2(end, number)
        os.closerange(3, max(*pipes, written) + 64)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # The whole end of an interpreter is part of an outcome, and nothing of the other process's frames.
    ctypes.pythonapi.Py_Exit(status)
    raise AssertionError("unreachable")
