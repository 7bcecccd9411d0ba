"""Runs programs that may crash, hang or end their process: each in a process of its own, watched and judged.

The programs are in `child_programs`; this module starts them. A child announces that it has begun. An
end before that is not a failure of the implementation: the suite could not start its program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...implementations import Implementation, path_of
from ...oracle.stages import stacks_in
from ...oracle.verdicts import Outcome, Stage, Verdict
from ...warm import ending
from ...warm.process import start

DEADLINE = 30.0
"""Seconds; a child needs two or three."""

MARK = "child: "
"""The prefix of a child's report lines; its standard output may have other lines, too."""


class ChildEndedError(Exception):
    """A child crashed, hung or did not begin; carries the outcome of its cell."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Ended(ending.Ended):
    """The end of a child, and its reports before that."""

    stage: Stage
    """Where it was."""
    said: tuple[Any, ...]

    def check(self, status: int = 0) -> None:
        """Raise for a crash, a hang, or an end with another status than the wanted one."""
        if self.status == status:
            return
        stacks = stacks_in(self.errors) or self.errors.strip()[-2000:]
        if self.status is None:
            outcome = Outcome(Verdict.HANG, self.stage, f"no end after {DEADLINE:.0f} s; stacks:\n{stacks}")
        else:
            reason = f"the program ended with {self.how}; it wrote:\n{stacks}"
            outcome = Outcome(Verdict.CRASH, self.stage, reason, signal=self.how)
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
    own = {**os.environ, **(environment or {})}
    python = Path(sys.executable) if fresh else None

    # Whoever kills this process and its group kills the child, too, since that leads no group.
    def begin(output: IO[bytes], errors: IO[bytes]) -> ending.Process:
        streams = (subprocess.DEVNULL, output, errors)
        return start(f"{__package__}.child_programs", command, own, streams, python=python)

    try:
        ran = ending.run(begin, DEADLINE)
    except Exception as error:
        raise _never_began(program, f"{type(error).__name__}: {error}") from error
    # An implementation may print there, too.
    lines = ran.output.splitlines()
    reports = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    stages = [Stage(report["stage"]) for report in reports if "stage" in report]
    said = tuple(report["said"] for report in reports if "said" in report)
    if not any("began" in report for report in reports):
        words = f"it had not begun after {DEADLINE:.0f} s" if ran.status is None else f"it ended with {ran.how}"
        raise _never_began(program, f"{words}: {_words(ran.errors)}")
    return Ended(ran.status, ran.output, ran.errors, (stages or [Stage.TRACE])[-1], said)


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
