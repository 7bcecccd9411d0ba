"""Splits a selection of cells among machines: which cells are those of shard 3 of 8.

A shard depends on the cells and on the two numbers, and on nothing else. So each machine finds its own shard without
asking the others. This module does not import JAX.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..options import Shard
from ..tasks import Task

PROCESS_START = 2.0
"""The seconds from the start of a worker process to its first cell: an isolated cell has one of its own."""


def estimate(task: Task) -> float:
    """About how many seconds a cell takes."""
    program = task.id.split("/")[2].partition("+")[0]
    own = 0.5 if program.startswith("case.") else 0.05 + 0.07 * len(program.split("."))
    own += PROCESS_START * task.isolated
    return own + 0.003 * task.topology.device_count + 1.0 * (task.topology.processes - 1)


def shard_of(tasks: Iterable[Task], shard: Shard) -> frozenset[str]:
    """The ids of the cells in a shard. Each cell is in one shard, and the shards take about as long as each other."""
    # The order of the tasks is that of the command line, which may differ from machine to machine.
    ordered = sorted(tasks, key=lambda task: (task.topology.name, task.implementation, task.xla_flags, task.id))
    # These share no worker process, so each shard has as many of them.
    isolated = sorted((task for task in ordered if task.isolated), key=lambda task: -estimate(task))
    chosen = isolated[shard.number - 1 :: shard.of]
    # The others are one row, in which those of one kind of worker are beside each other; each shard is a piece of it.
    row = [task for task in ordered if not task.isolated]
    costs = [*map(estimate, row)]
    total = sum(costs)
    for task, cost, until in zip(row, costs, itertools.accumulate(costs), strict=True):
        middle = (until - cost / 2) / total
        chosen += [task] * (int(middle * shard.of) == shard.number - 1)
    return frozenset(task.id for task in chosen)
