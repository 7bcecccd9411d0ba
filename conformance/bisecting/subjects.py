"""What is tried in a release or a commit: cells or a script, in another environment, as often as needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..releases.installing import Environment
from ..releases.trying import run_cells
from ..worker.processes import OtherPython
from .samples import Sample, sample_of
from .scripts import environment_of, run_script


class Subjects(Protocol):
    """Cells, or one script."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def conditions(self) -> str:
        """What an outcome depends on, beside the subject and the place."""

    def run(
        self, environment: Environment, runs: Mapping[str, int], checkout: bool = False
    ) -> Iterator[tuple[str, Sample]]:
        """Run these subjects so often; packages of a checkout come before the installed ones."""


class CheckoutPython(OtherPython):
    """An interpreter that finds packages of a checkout before the installed ones."""

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        # The folders of the user, and the current one, may be other checkouts.
        kept = {name: value for name, value in inherited.items() if name != "PYTHONPATH"}
        # Of two commits, modules of one size and one second are the same to Python, if they were compiled.
        return super().environment(kept) | {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Cells:
    names: tuple[str, ...]
    deadline: float
    log: Path
    verdict_alone: bool = False

    @property
    def conditions(self) -> str:
        return f"deadline {self.deadline:g}{', verdict alone' * self.verdict_alone}"

    def run(
        self, environment: Environment, runs: Mapping[str, int], checkout: bool = False
    ) -> Iterator[tuple[str, Sample]]:
        python = environment.worker
        if checkout:
            python = CheckoutPython(python.executable, python.jaxlib, python.path)
        for cell, outcome in run_cells(environment, runs, deadline=self.deadline, log=self.log, python=python):
            yield cell, sample_of(outcome, self.verdict_alone)


@dataclass(frozen=True)
class Script:
    path: Path
    deadline: float
    end_alone: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (str(self.path),)

    @property
    def conditions(self) -> str:
        # A script that was changed is another one.
        content = hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]
        return f"script {content}, deadline {self.deadline:g}{', verdict alone' * self.end_alone}"

    def run(
        self, environment: Environment, runs: Mapping[str, int], checkout: bool = False
    ) -> Iterator[tuple[str, Sample]]:
        variables = environment_of()
        if checkout:
            # The modules beside the script come after the checkout, which may lie there, too.
            path = os.pathsep.join((str(environment.packages), str(self.path.resolve().parent)))
            variables |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        for name, number in runs.items():
            for _ in range(number):
                yield name, run_script(self.path, environment.python, variables, self.deadline, self.end_alone)
