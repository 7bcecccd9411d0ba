"""Cells as the pytest processes see them: the worker to start, the cell's id, the deadline.

This module does not import JAX. All its objects can be pickled: xdist's workers get them from the controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..expectations.entries import Expectations
from ..spec.depths import Depth
from ..spec.topology import Topology
from ..worker.links import Cluster

Kind: TypeAlias = tuple[str, Topology, tuple[str, ...]]
"""The kind of a worker process: an implementation, a topology, and additional flags for XLA."""


@dataclass(frozen=True)
class Task:
    """One cell to run."""

    id: str
    implementation: str
    topology: Topology
    deadline: float
    isolated: bool = False
    """Whether the cell needs a process of its own, whose end is part of the outcome."""
    xla_flags: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        return self.implementation, self.topology, self.xla_flags

    @property
    def in_several_processes(self) -> bool:
        """Whether several processes run the cell together: below the depth of a run, one process does."""
        return self.topology.processes > 1 and self.topology.depth is Depth.RUN


def in_running_order(tasks: Iterable[Task]) -> list[Task]:
    """Slow cells first, then cells of one kind together.

    Every pytest process takes consecutive cells, so it starts few worker processes. Near the end, when an
    idle process takes cells from another one, only quick cells are left.
    """
    isolated: list[Task] = []
    by_kind: dict[Kind, list[Task]] = {}
    for task in tasks:
        (isolated if task.isolated else by_kind.setdefault(task.kind, [])).append(task)
    isolated.sort(key=lambda task: -task.deadline)
    return [*isolated, *(task for of_kind in by_kind.values() for task in of_kind)]


@dataclass(frozen=True)
class Setup:
    """The setup of a pytest process."""

    tasks: tuple[Task, ...]
    logs: Path
    journal: Path
    expectations: Expectations | None = None
    """A cell with an unexpected outcome runs again; None to accept every outcome."""
    histories: bool = False
    """Whether the outcome of a cell that passes has its history, too."""
    reruns: int = 0
    """The number of unexpected cells that one pytest process runs again."""
    repeat: int = 1
    """How often each cell runs. With more than one run, no unexpected cell runs again."""
    cluster: Cluster | None = None
    """Where the processes of a topology are, if not all on this machine; then one pytest process runs all cells."""
