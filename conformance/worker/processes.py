"""Starts, commands, watches and ends worker processes, for the engine."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..oracle.fair_deadline import FairDeadline
from ..oracle.stages import stacks_in, stage_of_stacks
from ..oracle.verdicts import Outcome, Stage, Verdict
from ..spec.errors import CommandError
from ..spec.topology import Topology, WrongPlatformError
from ..spec.xla_flags import QUICK_COMPILATION
from .transport import KILL_DEADLINE, LocalTransport, cause, last_words

TRIAL = "try"
"""The command that asks whether the platform has the callback of a case, and does not run the case."""

START_DEADLINE = 120.0
EXIT_DEADLINE = 20.0
STACK_DUMP_SECONDS = 1.0


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
        quick: Sequence[str] = QUICK_COMPILATION,
        python: OtherPython | None = None,
    ) -> None:
        """Start a worker, by default with this process's own interpreter."""
        inherited = python.environment(os.environ) if python else os.environ
        self.topology = topology
        self.implementation = implementation
        self.log = log
        arguments = [topology.name, *([implementation] if implementation else [])]
        own = worker_environment(topology, extra_xla_flags, inherited, quick, python.jaxlib if python else None)
        self._transport = LocalTransport(arguments, own, log, python.executable if python else None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._transport, selectors.EVENT_READ)
        self._reports: list[dict[str, Any]] = []
        self.buried = False
        """Whether this object has seen the end of the process and reported it in an outcome."""
        hello = self._report(self._deadline(START_DEADLINE))
        if hello is None:
            # The pipe closes a moment before the process writes why it ends.
            self._status(STACK_DUMP_SECONDS)
            self.kill()
            raise WorkerStartError(
                f"a worker for {topology.name} did not start: {last_words(self._transport.written())}"
            )
        if hello["event"] == "refused":
            self.kill()
            raise WrongPlatformError(hello["reason"])
        self.run_info: dict[str, Any] = hello["run_info"]

    def _deadline(self, seconds: float) -> FairDeadline:
        return FairDeadline(seconds, self._transport.pid)

    @property
    def alive(self) -> bool:
        return not self.buried and self._transport.wait(0.0) is None

    def run(self, cell_id: str, deadline: float, trial: bool = False) -> Outcome:
        """Run one cell. If the process ends or exceeds the deadline, that is this cell's outcome.

        A `trial` asks only whether the platform has the callback of a case.
        """
        started, until = time.monotonic(), self._deadline(deadline)
        self._transport.mark()
        self._transport.send({"do": TRIAL if trial else "run", "cell": cell_id})
        while line := self._report(until):
            if line["event"] == "end" and line["cell"] == cell_id:
                return Outcome.from_json(line["outcome"])
        # The pipe closes a moment before the process ends.
        status = self._status(0.0 if until.left() <= 0 else EXIT_DEADLINE)
        seconds = time.monotonic() - started
        return self._hang(seconds) if status is None else self._crash(status, seconds)

    def finish(self) -> Outcome:
        """Let the process end by itself; an end with another status, or none, is a failure at exit."""
        self._transport.finish()
        started = time.monotonic()
        status = self._status(EXIT_DEADLINE)
        if status is None:
            return self._hang(time.monotonic() - started)
        if status != 0:
            return self._crash(status, time.monotonic() - started, Stage.EXIT)
        self._close()
        return Outcome(Verdict.PASS)

    def kill(self) -> None:
        self._transport.kill()
        self._status(KILL_DEADLINE)
        self._close()

    def _close(self) -> None:
        self.buried = True
        self._selector.close()
        self._transport.close()

    def _status(self, timeout: float) -> int | None:
        """The status of the process, if it ends in so many seconds, beside those for which it has no processor."""
        return self._deadline(timeout).wait(self._transport.wait)

    def _report(self, until: FairDeadline) -> dict[str, Any] | None:
        """The next report, or None after the end of the pipe or when no time is left."""
        while not self._reports:
            seconds = max(0.0, until.pause())
            if not self._selector.select(seconds):
                if seconds > 0:
                    continue
                return None
            reports = self._transport.reports()
            if reports is None:
                return None
            self._reports += reports
        return self._reports.pop(0)

    def _crash(self, status: int, seconds: float, stage: Stage | None = None) -> Outcome:
        self._close()
        written = self._transport.written()
        stacks = stacks_in(written)
        words = last_words(written.replace(stacks, "") if stacks else written)
        reason = f"the process ended with {cause(status)}: {words}" + (f"; stacks:\n{stacks}" if stacks else "")
        return Outcome(Verdict.CRASH, stage or stage_of_stacks(written), reason, seconds, signal=cause(status))

    def _hang(self, seconds: float) -> Outcome:
        self._transport.mark()
        self._transport.show_stacks()
        time.sleep(STACK_DUMP_SECONDS)
        self.kill()
        stacks = self._transport.written().strip()
        reason = f"no answer for {seconds:.0f} s; stacks:\n{stacks[-4000:]}"
        return Outcome(Verdict.HANG, stage_of_stacks(stacks), reason, seconds)
