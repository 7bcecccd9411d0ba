"""What is tried in a release or a commit, cells or a script, and what makes two runs the same."""

from __future__ import annotations

import hashlib
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from ..oracle.verdicts import Outcome, Verdict
from ..releases.environments import Environment
from ..releases.trying import run_cells
from ..warm import ending

CANNOT_TEST = 125
"""The exit code by which a script says that it means nothing in this release, as for `git bisect run`."""

_NOTE = "For simplicity, JAX has removed its internal frames "
"""It stands below a line of dashes."""


@dataclass(frozen=True)
class Sample:
    """What one run showed."""

    words: str
    """The outcome: two runs with the same words have the same outcome. For an untestable release, the reason."""
    passed: bool = False
    detail: str = ""
    """The witness of a failure, or what a script complained of."""
    untestable: bool = False

    def as_json(self) -> dict[str, Any]:
        return vars(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Sample:
        return Sample(**data)


def counted(samples: Iterable[Sample]) -> Counter[str]:
    return Counter(sample.words for sample in samples)


@dataclass(frozen=True)
class Cells:
    names: tuple[str, ...]
    deadline: float
    log: Path
    version = "cells"

    def run(self, environment: Environment, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        for cell, outcome in run_cells(environment, runs, self.deadline, self.log):
            yield cell, sample_of(outcome)


def sample_of(outcome: Outcome) -> Sample:
    """The verdict, the stage and the kind of anomaly."""
    if outcome.verdict is Verdict.HARNESS_ERROR:
        # The last line of a traceback is the error.
        return Sample("the suite failed: " + outcome.reason.strip().rpartition("\n")[2], untestable=True)
    if outcome.verdict is Verdict.MISSING or (outcome.verdict is Verdict.UNSUPPORTED and outcome.stage is None):
        return Sample(outcome.reason.strip().partition("\n")[0], untestable=True)
    return Sample(outcome.words, outcome.verdict is Verdict.PASS, outcome.reason)


@dataclass(frozen=True)
class Script:
    """A user's program: its end and what it prints are the outcome."""

    path: Path
    deadline: float

    @property
    def names(self) -> tuple[str, ...]:
        return (str(self.path),)

    @property
    def version(self) -> str:
        """A script that was changed is another one."""
        return f"script {hashlib.sha256(self.path.read_bytes()).hexdigest()}"

    def run(self, environment: Environment, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        for name, number in runs.items():
            for _ in range(number):
                yield name, self._once(environment)

    def _once(self, environment: Environment) -> Sample:
        def start(output: IO[bytes], errors: IO[bytes]) -> ending.Process:
            return ending.Child(
                [environment.executable, self.path.resolve()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment.of_script(self.path),
                # Its own processes end with it, and Ctrl-C reaches this process alone.
                start_new_session=True,
            )

        ran = ending.run(start, self.deadline, by=signal.SIGKILL)
        text, complaint = ran.output.strip(), _error(ran.errors)
        end = "hang" if ran.status is None else f"crash({ran.signal})" if ran.signal else ran.how
        if end == f"exit {CANNOT_TEST}":
            return Sample(complaint or text or f"the script ended with {CANNOT_TEST}", untestable=True)
        if ran.status is not None:
            end += f", prints {' | '.join(text.splitlines()) or 'nothing'}"
        return Sample(end, end.startswith("exit 0,"), complaint)


def _error(written: str) -> str:
    """The last line of what a script complained of, without the note that JAX puts below an error."""
    lines = [line for line in written.splitlines() if line.strip("- \t") and not line.startswith(_NOTE)]
    return lines[-1].strip() if lines else ""


Subjects: TypeAlias = Cells | Script
