"""The order in which cells and tests try a mutant: quick ones, rare ones, and soon one of each sort."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from .coverage import Reached
from .pool import Check, is_test

START_SECONDS = 0.6
OWN_PROCESS_SECONDS = 1.5
GANG_SECONDS = 6.0

TOGETHER = 16
"""As many are sorted by their kind of worker before they run: each change of it costs a start."""


class Kills:
    """How often each cell or test has killed, and in which modules."""

    def __init__(self) -> None:
        self._of_each: Counter[str] = Counter()
        self._in_module: Counter[tuple[str, str]] = Counter()

    def add(self, killer: str, module: str) -> None:
        self._of_each[killer] += 1
        self._in_module[killer, module] += 1

    def weight(self, killer: str, module: str) -> float:
        return 1 + 0.3 * self._of_each[killer] + 3 * self._in_module[killer, module]


class Rarity:
    """How much a cell or test reaches that few others do: such a one is about something, and notices more."""

    def __init__(self, pool: Collection[Reached]) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        for one in pool:
            for module, lines in one.lines.items():
                self._counts.update((module, line) for line in lines)
        self._everywhere = {one.id: sum(self._in(one, module) for module in one.lines) for one in pool}

    def of(self, one: Reached, module: str) -> float:
        """In this module, and a tenth of it in the others."""
        return 0.05 + self._in(one, module) + 0.1 * self._everywhere.get(one.id, 0.0)

    def _in(self, one: Reached, module: str) -> float:
        return sum(1 / self._counts[module, line] for line in one.lines.get(module, ()))


def in_order(
    reaching: Iterable[Reached], pool: Mapping[str, Check], module: str, kills: Kills, rarity: Rarity
) -> list[Check]:
    """Those of the pool that reach a mutant. The cheapest of each sort come first, and no second one before them."""
    by_sort: dict[tuple[str, str], list[tuple[float, Check]]] = {}
    for one in reaching:
        check = pool.get(one.id)
        if check is not None:
            price = _seconds(one, check) / kills.weight(one.id, module) / rarity.of(one, module)
            by_sort.setdefault(_sort(one.id), []).append((price, check))
    queues = [sorted(each, key=lambda priced: priced[0]) for each in by_sort.values()]
    ranked: list[Check] = []
    while queues:
        queues.sort(key=lambda queue: queue[0][0])
        ranked += [queue.pop(0)[1] for queue in queues]
        queues = [queue for queue in queues if queue]
    return _by_kind(ranked)


def about(killer: str) -> str:
    """The function of a test; the case of a cell or the outermost transform of its program, for whatever callback."""
    if is_test(killer):
        return killer.partition("[")[0]
    program = killer.split("/")[2]
    return ".".join(program.split(".")[:2]) if program.startswith("case.") else re.split(r"[+.]", program)[0]


def _sort(killer: str) -> tuple[str, str]:
    return "" if is_test(killer) else killer.split("/")[1], about(killer)


def _seconds(one: Reached, check: Check) -> float:
    own = OWN_PROCESS_SECONDS if check.isolated else 0.0
    return one.seconds + START_SECONDS + (GANG_SECONDS if check.in_several_processes else own)


def _by_kind(ranked: Sequence[Check]) -> list[Check]:
    checks: list[Check] = []
    for start in range(0, len(ranked), TOGETHER):
        block = ranked[start : start + TOGETHER]
        kinds = list(dict.fromkeys(check.kind for check in block))
        checks += sorted(block, key=lambda each: (each.in_several_processes, each.isolated, kinds.index(each.kind)))
    return checks
