"""The order in which cells try a mutant: quick ones, those that reach what few others do, and soon one of each sort."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from conformance.engine.tasks import Task

from .coverage import Reached

START_SECONDS = 0.6
OWN_PROCESS_SECONDS = 1.5
GANG_SECONDS = 6.0

TOGETHER = 16
"""Cells that are sorted by their kind of worker before they run: each change of it costs a start."""


class Kills:
    """How often each cell has killed, and in which modules."""

    def __init__(self) -> None:
        self._of_cell: Counter[str] = Counter()
        self._in_module: Counter[tuple[str, str]] = Counter()

    def add(self, cell: str, module: str) -> None:
        self._of_cell[cell] += 1
        self._in_module[cell, module] += 1

    def weight(self, cell: str, module: str) -> float:
        return 1 + 0.3 * self._of_cell[cell] + 3 * self._in_module[cell, module]


class Rarity:
    """How much a cell reaches that few other cells do: such a cell is about something, and notices more."""

    def __init__(self, cells: Collection[Reached]) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        for one in cells:
            for module, lines in one.lines.items():
                self._counts.update((module, line) for line in lines)
        self._everywhere = {one.cell: sum(self._in(one, module) for module in one.lines) for one in cells}

    def of(self, one: Reached, module: str) -> float:
        """In this module, and a tenth of it in the others."""
        return 0.05 + self._in(one, module) + 0.1 * self._everywhere.get(one.cell, 0.0)

    def _in(self, one: Reached, module: str) -> float:
        return sum(1 / self._counts[module, line] for line in one.lines.get(module, ()))


def in_order(
    reaching: Iterable[Reached], tasks: Mapping[str, Task], module: str, kills: Kills, rarity: Rarity
) -> list[Task]:
    """The tasks of these cells. Of two sorts, the cheaper cell comes first; no sort has a second one before."""
    by_sort: dict[tuple[str, str], list[tuple[float, Task]]] = {}
    for one in reaching:
        task = tasks.get(one.cell)
        if task is not None:
            price = _seconds(one, task) / kills.weight(one.cell, module) / rarity.of(one, module)
            by_sort.setdefault(_sort(one.cell), []).append((price, task))
    queues = [sorted(each, key=lambda priced: priced[0]) for each in by_sort.values()]
    ranked: list[Task] = []
    while queues:
        queues.sort(key=lambda queue: queue[0][0])
        ranked += [queue.pop(0)[1] for queue in queues]
        queues = [queue for queue in queues if queue]
    return _by_kind(ranked)


def about(cell: str) -> str:
    """What a cell is about, for whatever callback: its fault, or the outermost transform of its program."""
    program = cell.split("/")[2]
    return ".".join(program.split(".")[:2]) if program.startswith("fault.") else re.split(r"[+.]", program)[0]


def _sort(cell: str) -> tuple[str, str]:
    return cell.split("/")[1], about(cell)


def _seconds(one: Reached, task: Task) -> float:
    own = OWN_PROCESS_SECONDS if task.isolated else 0.0
    return one.seconds + START_SECONDS + (GANG_SECONDS if task.in_several_processes else own)


def _by_kind(ranked: Sequence[Task]) -> list[Task]:
    tasks: list[Task] = []
    for start in range(0, len(ranked), TOGETHER):
        block = ranked[start : start + TOGETHER]
        kinds = list(dict.fromkeys(task.kind for task in block))
        tasks += sorted(block, key=lambda task: (task.in_several_processes, task.isolated, kinds.index(task.kind)))
    return tasks
