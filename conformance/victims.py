"""Programs that may crash, hang or end their process: run in one of their own, watched, and classed.

The programs are in `conformance.victim_programs`; this is the side that starts them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.bench import Bench
from conformance.stages import stacks_in
from conformance.verdicts import Outcome, Stage, Verdict

DEADLINE = 30.0
"""Seconds; a victim needs two or three."""

STACKS_DEADLINE = 5.0


class VictimEndedError(Exception):
    """A victim crashed or hung, and this is what became of its cell."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Ended:
    """How a victim ended, and what it had said before."""

    status: int | None
    """As `subprocess` gives it; None for one that had to be killed."""
    stage: Stage
    """Where it was."""
    said: tuple[Any, ...]
    errors: str

    @property
    def signal(self) -> str | None:
        return signal.Signals(-self.status).name if self.status is not None and self.status < 0 else None

    def check(self, status: int = 0) -> None:
        """Charge the cell with a crash or a hang, or with an end that is not the wanted one."""
        if self.status == status:
            return
        stacks = stacks_in(self.errors) or self.errors.strip()[-2000:]
        if self.status is None:
            outcome = Outcome(Verdict.HANG, self.stage, f"no end after {DEADLINE:.0f} s; stacks:\n{stacks}")
        else:
            how = self.signal or f"exit {self.status}"
            reason = f"the program ended with {how}; it wrote:\n{stacks}"
            outcome = Outcome(Verdict.CRASH, self.stage, reason, signal=how)
        raise VictimEndedError(outcome)


def run_victim(
    bench: Bench,
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program with the implementation, layout and devices of a bench."""
    names = (program, bench.implementation.name, bench.layout, str(len(bench.devices)), *arguments)
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance.victim_programs", *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        output, errors = _put_down(process)
        status = None
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    stages = [Stage(line["stage"]) for line in lines if "stage" in line]
    return Ended(status, (stages or [Stage.TRACE])[-1], tuple(line["said"] for line in lines if "said" in line), errors)


def _put_down(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End what hangs; its fault handler writes the stacks of all threads on an abort."""
    process.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=STACKS_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
