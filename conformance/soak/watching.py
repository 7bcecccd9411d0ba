"""Starts the process of a soak, says how far it is, and ends it if it hangs. This side does not import JAX."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from ..spec.errors import CommandError
from ..spec.topology import Topology
from ..worker.processes import worker_environment
from .found import Found
from .options import Options

REFUSED = 2
SAY_SECONDS = 10.0
POLL_SECONDS = 0.5
START_SECONDS = 120.0
STACK_SECONDS = 2.0
STOP_SECONDS = 120.0
"""How long a soak may take to come to an end after Ctrl-C: its threads end what they do."""

LOG = "stderr.log"


class RefusedError(CommandError):
    """A soak that cannot begin; the text says why."""


def watch(
    options: Options,
    results: Path,
    deadline: float,
    say: Callable[[str], None],
    program: Sequence[str] = ("-m", __package__),
) -> Found:
    """Run a soak in a process of its own, by this program. It hangs if it goes no further for `deadline` seconds."""
    started = time.monotonic()
    log = results / LOG
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *program, options.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=worker_environment(Topology("cpu", options.devices), (), os.environ),
            # Ctrl-C must reach only the command, which ends the soak itself.
            start_new_session=True,
        )
    watching = _Watch(process, options, deadline, say, log)
    # A shell starts what runs in the background with SIGINT ignored, which stays so.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, watching.note_interrupt)
    try:
        report = watching.until_it_ends()
    finally:
        signal.signal(signal.SIGINT, before)
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    return Found.of(options, report, time.monotonic() - started)


class _Watch:
    def __init__(
        self, process: subprocess.Popen[bytes], options: Options, deadline: float, say: Callable[[str], None], log: Path
    ) -> None:
        self._process = process
        self._options = options
        self._deadline = deadline
        self._say = say
        self._log = log
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._last: dict[str, Any] = {}
        self._interrupts = 0
        self._stopping = False
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def until_it_ends(self) -> dict[str, Any]:
        """The last report; with an anomaly if the process crashed or hung."""
        said = started = further = time.monotonic()
        allowed = START_SECONDS + self._deadline
        while True:
            report = self._next(POLL_SECONDS)
            now = time.monotonic()
            if self._interrupts > 1:
                return self._broken("interrupted", "a second interrupt came before the soak had ended")
            if self._interrupts and not self._stopping:
                self._stop()
                further, allowed = now, STOP_SECONDS
            if report is None:
                return self._broken("crash", self._how_it_ended())
            if "refused" in report:
                raise RefusedError(report["refused"])
            if report.get("ended"):
                return {**report, "interrupted": self._stopping}
            if report:
                if not self._last:
                    self._say(_began(self._options, report))
                if _further(report, self._last):
                    further = now
                    allowed = STOP_SECONDS if self._stopping else self._deadline
                self._last = report
            if now - further > allowed:
                return self._broken("hang", self._stacks(now - further))
            if self._last and now - said >= SAY_SECONDS:
                self._say(_progress(self._last, now - started))
                said = now

    def note_interrupt(self, *_: object) -> None:
        """The handler of SIGINT: an exception could come between a report and what is made of it."""
        self._interrupts += 1

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next report, {} if none comes in time, None after the last one."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return {}

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def _stop(self) -> None:
        self._stopping = True
        self._say("interrupted: the threads end what they do; once more to end at once")
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _broken(self, kind: str, witness: str) -> dict[str, Any]:
        waiting = "\n".join(f"  {line}" for line in self._last.get("waiting", ()))
        if waiting:
            witness += f"\nprograms that are not over:\n{waiting}"
        return {**self._last, "interrupted": self._stopping, "anomalies": [{"kind": kind, "witness": witness}]}

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the process of the soak ended with {cause}; it wrote:\n{self._tail()}"

    def _stacks(self, seconds: float) -> str:
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACK_SECONDS)
        return f"nothing has gone on for {seconds:.0f} s; the stacks of all threads:\n{self._tail()}"

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-12_000:].strip()


def _began(options: Options, report: dict[str, Any]) -> str:
    return (
        f"a soak of {options.implementation} with JAX {report['jax']} on Python {report['python']}: "
        f"{options.threads} threads, {options.devices} devices, seed {options.seed}"
    )


def _further(report: dict[str, Any], last: dict[str, Any]) -> bool:
    return any(report.get(name) != last.get(name) for name in ("acts", "events", "rounds"))


def _progress(report: dict[str, Any], seconds: float) -> str:
    rate = report["events"] / seconds
    return (
        f"{seconds:6.0f} s: {report['events']:,} events of {report['runs']:,} runs, {rate:,.0f} events/s, "
        f"{report['rounds']} rounds, {report['found']} anomalies"
    )
