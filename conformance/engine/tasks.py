"""Cells as the pytest processes see them: the worker to start, the cell's id, the deadline.

This module does not import JAX. All its objects can be pickled: xdist's workers get them from the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..expectations.entries import Expectations
from ..spec.topology import Topology
from ..worker.transport import Cluster
from .first_cells import place_of
from .options import RunOptions

Kind: TypeAlias = tuple[str, Topology, tuple[str, ...]]
"""The kind of a worker process: an implementation, a topology, and additional flags for XLA."""


@dataclass(frozen=True)
class Task:
    id: str
    implementation: str
    topology: Topology
    deadline: float
    isolated: bool = False
    """Whether the cell needs a process of its own, whose end is part of the outcome."""
    xla_flags: tuple[str, ...] = ()
    exclusive: bool = False
    """Whether it runs while no other pytest process of the run has a cell."""

    @property
    def kind(self) -> Kind:
        return self.implementation, self.topology, self.xla_flags

    @property
    def in_several_processes(self) -> bool:
        return self.topology.in_several_processes


def in_running_order(tasks: Iterable[Task], processes: int = 1) -> list[Task]:
    """First the cells that kill most mutants, then those with a process of their own, then cells of one kind together.

    Each of these pytest processes begins with an equal part of the list. So each part begins with cells that kill
    mutants, and has few kinds. Near the end, when an idle process takes cells from another one, only quick cells are
    left.

    Several pytest processes on CPUs share the processor, and many cells wait. So cells in several processes are early
    in the first part, and cells with a process of their own are spread over the first half of each part. On another
    platform a cell with a process of its own may end the process of the cells around it.
    """
    first: list[Task] = []
    isolated: list[Task] = []
    by_kind: dict[Kind, list[Task]] = {}
    for task in tasks:
        if place_of(task.id) is not None:
            first.append(task)
        elif task.isolated:
            isolated.append(task)
        else:
            by_kind.setdefault(task.kind, []).append(task)
    first.sort(key=lambda task: place_of(task.id) or 0)
    isolated.sort(key=lambda task: -task.deadline)
    kinds = sorted(by_kind.values(), key=lambda of_kind: -of_kind[0].topology.processes)
    together = [task for of_kind in kinds for task in of_kind]
    every = [*first, *isolated, *together]
    waits_beside_others = processes > 1 and all(task.topology.platform == "cpu" for task in every)
    left = len(every)
    beginnings, alone = _dealt(first, processes), _dealt(isolated, processes)
    # Several processes take longest to start.
    beginnings[0].sort(key=lambda task: task.topology.processes)
    parts: list[Task] = []
    for place in range(processes):
        # As xdist divides a list.
        size = left // (processes - place)
        left -= size
        missing = max(0, size - len(beginnings[place]) - len(alone[place]))
        own, of_kinds = alone[place], together[:missing]
        parts += [*beginnings[place], *(_spread(own, of_kinds) if waits_beside_others else [*own, *of_kinds])]
        del together[:missing]
    return parts + together


def _dealt(tasks: Sequence[Task], processes: int) -> list[list[Task]]:
    """The tasks in equal parts. Those of several processes are at the beginning of the first."""
    parts: list[list[Task]] = [[] for _ in range(processes)]
    for task in sorted(tasks, key=lambda task: -task.topology.processes):
        (min(parts, key=len) if task.topology.processes == 1 else parts[0]).append(task)
    return parts


def _spread(alone: Sequence[Task], together: Sequence[Task]) -> list[Task]:
    """All tasks in order, with those in `alone` at equal distances among the first half of the others."""
    half = len(together) // 2
    spread: list[Task] = []
    after = 0
    for place, task in enumerate(alone):
        before, after = after, place * half // len(alone)
        spread += [*together[before:after], task]
    return [*spread, *together[after:]]


@dataclass(frozen=True)
class Setup:
    tasks: tuple[Task, ...]
    logs: Path
    journal: Path
    options: RunOptions = RunOptions()
    expectations: Expectations | None = None
    """A cell with an unexpected outcome runs again; None to accept every outcome."""
    reruns: int = 0
    """The number of unexpected cells that one pytest process runs again."""
    cluster: Cluster | None = None
    """Where the processes of a topology are, if not all on this machine; then one pytest process runs all cells."""
