"""Splits a selection of cells among machines: which cells are those of shard 3 of 8.

A shard depends on the cells and on the two numbers, and on nothing else. So each machine finds its own shard without
asking the others. This module does not import JAX.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from ..options import Shard
from ..tasks import Task

PROCESS_START = 2.0
"""The seconds from the start of a worker process to its first cell."""

LARGE = 0.1
"""A cell that takes more than this part of a shard is placed for itself, before the others."""

NEARLY_FULL = 0.05
"""A shard that lacks less than this part starts no worker of another kind."""


def digest(ids: Iterable[str]) -> str:
    """A name for a selection of cells; their order does not matter."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def estimate(task: Task) -> float:
    """About how many seconds a cell takes in its worker process."""
    program = task.id.split("/")[2].partition("+")[0]
    own = 0.5 if program.startswith("case.") else 0.05 + 0.07 * len(program.split("."))
    return own + 0.003 * task.topology.device_count + 1.0 * (task.topology.processes - 1)


def shard_of(tasks: Sequence[Task], shard: Shard) -> frozenset[str]:
    """The ids of the cells in a shard. Each cell is in one shard, and the shards take about as long as each other."""
    return frozenset(_shards(tasks, shard.of)[shard.number - 1])


def _shards(tasks: Sequence[Task], count: int) -> list[list[str]]:
    # The order of the tasks is that of the command line, which may differ from machine to machine.
    ordered = sorted(tasks, key=lambda task: (task.topology.name, task.implementation, task.xla_flags, task.id))
    cost = {task.id: estimate(task) + (PROCESS_START if task.isolated else 0.0) for task in ordered}
    share = sum(cost.values()) / count
    apart = [task for task in ordered if task.isolated or cost[task.id] > LARGE * share]
    shards: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    # The longest first, each to the shard that has least. These share no worker process, or hardly profit from it.
    for task in sorted(apart, key=lambda task: (-cost[task.id], task.id)):
        place = loads.index(min(loads))
        shards[place].append(task.id)
        loads[place] += cost[task.id]
    placed = {task.id for task in apart}
    _fill(shards, loads, [task for task in ordered if task.id not in placed], cost)
    return shards


def _fill(shards: list[list[str]], loads: list[float], tasks: Sequence[Task], cost: Mapping[str, float]) -> None:
    """Fill the shards one after another up to one level with small cells, which are sorted by the kind of worker."""
    left = sum(cost[task.id] for task in tasks)
    start = 0
    for place in range(len(shards)):
        level = _level(loads[place:], left)
        last = place == len(shards) - 1
        kind = None
        while start < len(tasks):
            task = tasks[start]
            free = level - loads[place]
            another_kind = kind is not None and task.kind != kind
            if not last and (free < cost[task.id] / 2 or (another_kind and free < NEARLY_FULL * level)):
                break
            shards[place].append(task.id)
            loads[place] += cost[task.id]
            left -= cost[task.id]
            kind = task.kind
            start += 1


def _level(loads: Sequence[float], more: float) -> float:
    """The load up to which all can be filled with this much more."""
    ordered = sorted(loads)
    for count in range(len(ordered), 0, -1):
        level = (more + sum(ordered[:count])) / count
        if level >= ordered[count - 1]:
            return level
    raise AssertionError("unreachable")
