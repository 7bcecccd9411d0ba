"""Runs programs that may crash, hang or end their process: each in a process of its own, watched and judged.

The programs are in `child_programs`; this module starts them. A child announces that it has begun. An
end before that is not a failure of the implementation: the suite could not start its program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...implementations import Implementation, path_of
from ...oracle.stages import stacks_in
from ...oracle.verdicts import Outcome, Stage, Verdict
from ...warm.process import Process, start

DEADLINE = 30.0
"""Seconds; a child needs two or three."""

STACKS_DEADLINE = 5.0

MARK = "child: "
"""The prefix of a child's report lines; its standard output may have other lines, too."""


class ChildEndedError(Exception):
    """A child crashed, hung or did not begin; carries the outcome of its cell."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Ended:
    """The end of a child, and its reports before that."""

    status: int | None
    """The return code of `subprocess`; None for a child that had to be killed."""
    stage: Stage
    """Where it was."""
    said: tuple[Any, ...]
    errors: str

    @property
    def signal(self) -> str | None:
        return signal.Signals(-self.status).name if self.status is not None and self.status < 0 else None

    @property
    def how(self) -> str:
        return self.signal or f"exit {self.status}"

    def check(self, status: int = 0) -> None:
        """Raise for a crash, a hang, or an end with another status than the wanted one."""
        if self.status == status:
            return
        stacks = stacks_in(self.errors) or self.errors.strip()[-2000:]
        if self.status is None:
            outcome = Outcome(Verdict.HANG, self.stage, f"no end after {DEADLINE:.0f} s; stacks:\n{stacks}")
        else:
            how = self.how
            reason = f"the program ended with {how}; it wrote:\n{stacks}"
            outcome = Outcome(Verdict.CRASH, self.stage, reason, signal=how)
        raise ChildEndedError(outcome)


def run_child(
    program: str,
    implementation: Implementation,
    layout: str,
    device_count: int,
    callback: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> Ended:
    """Run a program with a case of this implementation, layout and callback.

    `fresh` starts a new interpreter for it, because the end of an interpreter is its subject.
    """
    command = (program, path_of(implementation), layout, str(device_count), callback, *arguments)
    try:
        own = {**os.environ, **(environment or {})}
        process = start(f"{__package__}.child_programs", command, own, stdin=subprocess.DEVNULL, fresh=fresh)
    except Exception as error:
        raise _never_began(program, f"{type(error).__name__}: {error}") from error
    try:
        written = process.communicate(timeout=DEADLINE)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        written = _put_down(process)
        status = None
    output, errors = (stream.decode(errors="replace") for stream in written)
    # An implementation may print there, too.
    reports = [json.loads(line.removeprefix(MARK)) for line in output.splitlines() if line.startswith(MARK)]
    stages = [Stage(report["stage"]) for report in reports if "stage" in report]
    said = tuple(report["said"] for report in reports if "said" in report)
    ended = Ended(status, (stages or [Stage.TRACE])[-1], said, errors)
    if not any("began" in report for report in reports):
        how = f"it had not begun after {DEADLINE:.0f} s" if status is None else f"it ended with {ended.how}"
        raise _never_began(program, f"{how}: {_words(errors)}")
    return ended


def _never_began(program: str, why: str) -> ChildEndedError:
    reason = f"the program {program} of this cell did not begin, which shows nothing about callbacks: {why}"
    return ChildEndedError(Outcome(Verdict.HARNESS_ERROR, None, reason))


def _words(errors: str) -> str:
    """The standard error of a process, with the clearest line first."""
    stacks, lines = stacks_in(errors), errors.strip().splitlines()
    if not lines:
        return "it wrote nothing on standard error"
    # An exception is at the end. For a signal, the stacks and the runtime's lines before them are the evidence.
    return errors.strip()[-2000:] if stacks else f"{lines[-1]}; it wrote:\n{errors.strip()[-2000:]}"


def _put_down(process: Process) -> tuple[bytes, bytes]:
    """Abort a process that hangs; its fault handler then writes the stacks of all threads."""
    process.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=STACKS_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
