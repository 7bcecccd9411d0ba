"""Tries programs in a worker process, which a program may crash or hang. Needs no JAX."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ..oracle.fair_deadline import FairDeadline
from ..oracle.stages import stacks_in
from ..spec.errors import CommandError
from ..spec.xla_flags import QUICK_COMPILATION, known
from .description import Program, to_json

MARK = "fuzz: "
"""The prefix of a worker's lines; callbacks and the runtime may print others."""

START = 120.0
"""Seconds in which a worker must have loaded JAX."""


class WorkerError(CommandError):
    """A worker that does not start, or an error of the suite itself."""


@dataclass(frozen=True)
class Answer:
    """What became of a program."""

    kind: str = ""
    """The kind of the first anomaly, `crash` or `hang`; empty if all was as expected."""
    witness: str = ""
    unjudged: str = ""

    @property
    def signature(self) -> str:
        """Findings with equal ones are taken for one."""
        if self.kind in ("error", "crash"):
            return f"{self.kind} {''.join(one for one in self.witness[:60] if not one.isdigit())}"
        return self.kind


class Trying:
    """Keeps a worker, and replaces one that a program has ended."""

    def __init__(self, implementation: str, platform: str = "cpu", devices: int = 4, deadline: float = 60.0) -> None:
        self.command = [sys.executable, "-m", f"{__package__}.worker", implementation, platform, str(deadline)]
        self.devices, self.platform, self.deadline = devices, platform, deadline
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed at exit

    def __enter__(self) -> Self:
        try:
            self._start()
        except WorkerError:
            self._errors.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._errors.close()

    def ask(self, program: Program) -> Answer:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(to_json(program)) + "\n")
            process.stdin.flush()
        try:
            found = self._line(self.deadline)
        except queue.Empty:
            process.send_signal(signal.SIGABRT)
            self._end()
            limit = f"its limit of {self.deadline:.0f} s, beside the time without a processor"
            return Answer("hang", f"no end in {limit}; stacks:\n{self._words()}")
        if found is None:
            self._end()
            status = process.returncode
            how = signal.Signals(-status).name if status < 0 else f"exit {status}"
            return Answer("crash", f"{how}\n{self._words()}")
        if "suite" in found:
            raise WorkerError(f"the suite failed on a program: {found['suite']}")
        if found["anomalies"]:
            kind, _, witness = found["anomalies"][0]
            if kind == "error":
                # Later programs may fail by it: ordered effects of JAX hand a failure on.
                self._end()
            return Answer(kind, witness)
        return Answer(unjudged=found["unjudged"])

    def _start(self) -> None:
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._environment()},
        )
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()
        try:
            found = self._line(START)
        except queue.Empty:
            found = None
        if found is None:
            self._end()
            raise WorkerError(f"no worker starts:\n{self._words()}")
        self.devices = min(self.devices, found["devices"])

    def _environment(self) -> dict[str, str]:
        flags: Sequence[str] = known(QUICK_COMPILATION) if self.platform == "cpu" else ()
        if self.platform == "cpu":
            flags = (f"--xla_force_host_platform_device_count={self.devices}", *flags)
        words = f"{os.environ.get('XLA_FLAGS', '')} {' '.join(flags)}".strip()
        return {"XLA_FLAGS": words, "JAX_PLATFORMS": self.platform, "TF_CPP_MIN_LOG_LEVEL": "2"}

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """The worker's next answer; None if it has ended. The time for which it has no processor does not count."""
        assert self._process is not None
        line = FairDeadline(seconds, self._process.pid).wait(self._line_in)
        if line is None:
            raise queue.Empty
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    def _line_in(self, seconds: float) -> str | None:
        """The next line, "" at the end of the worker, None if neither comes in time."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            # What is in the pipe of a worker that has ended is lost.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read()
        return stacks_in(text) or text[-2000:]


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            if line.startswith(MARK):
                lines.put(line.removeprefix(MARK))
    lines.put("")
