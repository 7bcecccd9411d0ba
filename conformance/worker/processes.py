"""Starts, commands, watches and ends worker processes, for the engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..oracle.fair_deadline import FairDeadline
from ..oracle.stages import stacks_in, stage_of_stacks
from ..oracle.verdicts import Outcome, Stage, Verdict
from ..spec.errors import CommandError
from ..spec.topology import Topology, WrongPlatformError
from ..spec.xla_flags import QUICK_COMPILATION
from ..warm.process import Process, start

TRIAL = "try "
"""Before the id of a fault: try whether the platform has its callback, and do not plant the fault."""

WORKER = f"{__package__}.__main__"

START_DEADLINE = 120.0
EXIT_DEADLINE = 20.0
STACK_DUMP_SECONDS = 1.0
KILL_DEADLINE = 10.0
"""A killed process can outlast this only inside a driver call; then the engine does not wait for it."""


_FATAL = re.compile(r"Fatal |F\d{4} |\d{4}-\d\d-\d\d [\d:.]+: F ")
"""Fatal messages come first. Python's start with "Fatal", the runtime's with F and the day, or with the time and F."""


@dataclass(frozen=True)
class OtherPython:
    """The interpreter of another environment, which has another JAX than this process."""

    executable: Path
    jaxlib: str
    """The version there: it decides which flags XLA knows."""
    path: tuple[Path, ...]
    """The folders in which it finds the suite and hostcb."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of its processes."""
        # The interpreter of this process may have been started with these; they are wrong for another one.
        environment = {name: value for name, value in inherited.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
        # The user's own folders stay, because implementations outside the suite are found there.
        folders = [*map(str, self.path), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
        return environment


class WorkerStartError(CommandError):
    """A worker ended before its first report."""


def worker_environment(
    topology: Topology,
    extra_xla_flags: Sequence[str],
    inherited: Mapping[str, str],
    quick: Sequence[str] = QUICK_COMPILATION,
    jaxlib: str | None = None,
) -> dict[str, str]:
    environment = topology.environment(inherited, quick, jaxlib)
    flags = (environment.get("XLA_FLAGS", ""), *extra_xla_flags)
    environment["XLA_FLAGS"] = " ".join(flags).strip()
    # Several workers share a device: no worker may take all its memory at its start.
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return environment


class WorkerProcess:
    """One worker, for one implementation on one topology.

    `run` never raises because a cell crashes or hangs.
    """

    def __init__(
        self,
        topology: Topology,
        implementation: str | None,
        log: Path,
        extra_xla_flags: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
        quick: Sequence[str] = QUICK_COMPILATION,
        histories: bool = False,
        python: OtherPython | None = None,
        fresh: bool = False,
        compiled: Path | None = None,
    ) -> None:
        """Start a worker, by default with this process's own interpreter, and `fresh` if it must not be a fork."""
        jaxlib = None
        if python:
            jaxlib, environment = python.jaxlib, python.environment(environment)
        self.topology = topology
        self.implementation = implementation
        self.log = log
        with log.open("ab") as stderr:
            self._log_start = self._cell_start = stderr.tell()
            arguments = [topology.name, *([implementation] if implementation else [])]
            arguments += ["--histories"] if histories else []
            arguments += ["--compiled", str(compiled.absolute())] if compiled else []
            own = worker_environment(topology, extra_xla_flags, environment, quick, jaxlib)
            # Ctrl-C must reach only the run, which ends its workers itself.
            self._process: Process
            if python:
                self._process = subprocess.Popen(
                    [python.executable, "-m", WORKER, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=own,
                    start_new_session=True,
                )
            else:
                self._process = start(WORKER, arguments, own, stderr, session=True, fresh=fresh)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe("stdout"), selectors.EVENT_READ)
        self._unread = b""
        self.buried = False
        """Whether this object has seen the end of the process and reported it in an outcome."""
        hello = self._read_line(FairDeadline(START_DEADLINE, self._process.pid).left)
        if hello is None:
            # The pipe closes a moment before the process writes why it ends.
            self._ended(STACK_DUMP_SECONDS)
            self.kill()
            raise WorkerStartError(f"a worker for {topology.name} did not start: {self._log_tail()}")
        if hello["event"] == "refused":
            self.kill()
            raise WrongPlatformError(hello["reason"])
        self.run_info: dict[str, Any] = hello["run_info"]

    def _pipe(self, name: str) -> Any:
        pipe = getattr(self._process, name)
        assert pipe is not None
        return pipe

    @property
    def alive(self) -> bool:
        return not self.buried and self._process.poll() is None

    def run(self, cell_id: str, deadline: float, trial: bool = False) -> Outcome:
        """Run one cell. If the process ends or exceeds the deadline, that is this cell's outcome.

        A `trial` asks only whether the platform has the callback of a fault.
        """
        started, until = time.monotonic(), FairDeadline(deadline, self._process.pid)
        self._cell_start = self.log.stat().st_size
        try:
            self._pipe("stdin").write(f"{TRIAL if trial else ''}{cell_id}\n".encode())
            self._pipe("stdin").flush()
        except BrokenPipeError:
            ended = self._ended(timeout=EXIT_DEADLINE)
            seconds = time.monotonic() - started
            return self._crash(seconds) if ended else self._hang(seconds)
        while True:
            line = self._read_line(until.left)
            seconds = time.monotonic() - started
            if line is None:
                # The pipe closes a moment before the process ends.
                if self._ended(timeout=0.0 if until.left() <= 0 else EXIT_DEADLINE):
                    return self._crash(seconds)
                return self._hang(seconds)
            if line["event"] == "end" and line["cell"] == cell_id:
                return Outcome.from_json(line["outcome"])

    def finish(self) -> Outcome:
        """Let the process end by itself; an end with another status, or none, is a failure at exit."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe("stdin").close()
        started = time.monotonic()
        if not self._ended(timeout=EXIT_DEADLINE):
            return self._hang(time.monotonic() - started)
        if self._process.returncode != 0:
            return self._crash(time.monotonic() - started, Stage.EXIT)
        self._close()
        return Outcome(Verdict.PASS)

    def end(self) -> None:
        """Kill the process, from any thread: the one that runs cells sees its end, and buries it."""
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()
        self._ended(KILL_DEADLINE)
        self._close()

    def _close(self) -> None:
        self.buried = True
        self._selector.close()
        for name in ("stdin", "stdout"):
            # A pipe to an ended process may hold data that can no longer be written.
            with contextlib.suppress(BrokenPipeError):
                self._pipe(name).close()

    def _ended(self, timeout: float) -> bool:
        """Whether the process ends in so many seconds, beside those for which it has no processor."""
        return FairDeadline(timeout, self._process.pid).wait(self._status_in) is not None

    def _status_in(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _read_line(self, left: Callable[[], float]) -> dict[str, Any] | None:
        """The next report, or None after the end of the pipe or when no time is `left`."""
        while b"\n" not in self._unread:
            seconds = max(0.0, left())
            if not self._selector.select(seconds):
                if seconds > 0:
                    continue
                return None
            received = os.read(self._pipe("stdout").fileno(), 1 << 16)
            if not received:
                return None
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def _crash(self, seconds: float, stage: Stage | None = None) -> Outcome:
        self._process.wait()
        self._close()
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit {code}"
        written = self._log_from(self._cell_start)
        stacks = stacks_in(written)
        reason = f"the process ended with {cause}: {self._log_tail()}" + (f"; stacks:\n{stacks}" if stacks else "")
        return Outcome(Verdict.CRASH, stage or stage_of_stacks(written), reason, seconds, signal=cause)

    def _hang(self, seconds: float) -> Outcome:
        before = self.log.stat().st_size
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACK_DUMP_SECONDS)
        self.kill()
        stacks = self._log_from(before).strip()
        reason = f"no answer for {seconds:.0f} s; stacks:\n{stacks[-4000:]}"
        return Outcome(Verdict.HANG, stage_of_stacks(stacks), reason, seconds)

    def _log_from(self, start: int) -> str:
        """This worker's standard error from this offset on; earlier workers share the file."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def _log_tail(self) -> str:
        lines = self._log_from(self._log_start).splitlines()
        fatal = [line for line in lines if _FATAL.match(line)]
        chosen = fatal[-2:] or lines[-2:]
        return " | ".join(line.strip()[:400] for line in chosen) or "nothing on standard error"
