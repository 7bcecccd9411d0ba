"""Which mutants a campaign tries: the same ones for the same seed, from every module, and of every kind there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from .field_operators import FIELD
from .mutant import Mutant

LEAST = 2
"""From every module, if it has as many."""

FIELD_WEIGHT = 2
"""Kinds of the field come as often as this in a round, and usual kinds once."""


def chosen(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """As many mutants, in the order of the source: from each module by the root of its number of mutants."""
    by_module = _grouped(mutants, lambda mutant: mutant.module)
    shares = _shares({module: len(each) for module, each in by_module.items()}, count)
    taken = {one.id for module, each in by_module.items() for one in _from(each, shares[module], seed)}
    return [mutant for mutant in mutants if mutant.id in taken]


def _shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """How many of each module; large modules have more, and small ones not none."""
    shares = {module: min(LEAST, size) for module, size in sizes.items()}
    while (left := count - sum(shares.values())) > 0:
        open_ones = [module for module, size in sizes.items() if shares[module] < size]
        if not open_ones:
            break
        # The module with the fewest, for its size, gets the next one.
        for module in sorted(open_ones, key=lambda each: shares[each] / math.sqrt(sizes[each]))[: max(1, left // 8)]:
            shares[module] += 1
    return shares


def _from(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Round by round, of the kinds in a drawn order; those that are no Python any more are passed over."""
    draw = random.Random(f"{seed} {mutants[0].module}")
    by_kind = _grouped(mutants, lambda mutant: mutant.kind)
    rounds = [kind for kind in by_kind for _ in range(FIELD_WEIGHT if kind in FIELD else 1)]
    draw.shuffle(rounds)
    for each in by_kind.values():
        # By the ids: an edit of the module leaves the others where they are.
        each.sort(key=lambda mutant: random.Random(f"{seed} {mutant.id}").random())
    found: list[Mutant] = []
    while len(found) < count and any(by_kind.values()):
        for kind in rounds:
            while by_kind[kind] and len(found) < count:
                candidate = by_kind[kind].pop()
                if candidate.can_be_compiled:
                    found.append(candidate)
                    break
    return found


def _grouped(mutants: Iterable[Mutant], key: Callable[[Mutant], str]) -> dict[str, list[Mutant]]:
    groups: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(key(mutant), []).append(mutant)
    return groups
