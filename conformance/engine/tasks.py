"""Cells as the processes that run them see them: what to start, what to ask, how long to wait.

Nothing here imports JAX, and everything can be pickled: xdist's workers get it from the controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from conformance.expectations import Expectations
from conformance.topology import Topology

Kind: TypeAlias = tuple[str, Topology, tuple[str, ...]]
"""What a worker process is made for: an implementation and a topology, and its own flags for XLA."""


@dataclass(frozen=True)
class Task:
    """One cell to run."""

    id: str
    implementation: str
    topology: Topology
    deadline: float
    isolated: bool = False
    """Whether it needs a process of its own, whose end is part of the outcome."""
    xla_flags: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        return self.implementation, self.topology, self.xla_flags


def in_running_order(tasks: Iterable[Task]) -> list[Task]:
    """The slow ones first, then those of one kind together.

    Every pytest process takes neighbours, so few worker processes are started; and what is left at the
    end, when one process has nothing to do any more and takes from another, is small.
    """
    isolated: list[Task] = []
    by_kind: dict[Kind, list[Task]] = {}
    for task in tasks:
        (isolated if task.isolated else by_kind.setdefault(task.kind, [])).append(task)
    isolated.sort(key=lambda task: -task.deadline)
    return [*isolated, *(task for of_kind in by_kind.values() for task in of_kind)]


@dataclass(frozen=True)
class Setup:
    """What a pytest process has to know."""

    tasks: tuple[Task, ...]
    logs: Path
    journal: Path
    expectations: Expectations | None = None
    """By which an outcome is unexpected, so that the cell is run again; None to take every outcome as it is."""
    reruns: int = 0
    """How many unexpected cells one pytest process runs again."""
