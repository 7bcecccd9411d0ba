"""Covering arrays: few rows in which every possible pair of values of two axes occurs.

The algorithm is greedy and deterministic: a row begins with a pair that is not covered yet, and every further
axis takes the value that covers most pairs. Constraints exclude combinations without meaning, each with its
reason. A pair that fits in no row is excluded with the reason of its constraint.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

Row: TypeAlias = tuple[str, ...]
"""One value for each axis, in the order of the axes."""

Place: TypeAlias = tuple[int, str]
"""The position of an axis, and one of its values."""

Pair: TypeAlias = tuple[int, str, int, str]
"""The positions of two axes, the smaller one first, each followed by a value of that axis."""


@dataclass(frozen=True)
class Constraint:
    """Excludes combinations of values of some axes."""

    axes: tuple[str, ...]
    reason: Callable[..., str | None]
    """Called with one value for each of these axes; returns the reason if they have no meaning together, or None."""


class _Asked:
    """A constraint with a cache: it is called once for each combination of values."""

    def __init__(self, axes: tuple[int, ...], constraint: Constraint) -> None:
        self.axes = axes
        # An axis twice keeps the values of a constraint on it alone a tuple.
        self._values_in = itemgetter(*axes) if len(axes) > 1 else itemgetter(axes[0], axes[0])
        self._constraint = constraint
        self._answers: dict[tuple[str | None, ...], str | None] = {}

    def reason(self, row: Sequence[str | None]) -> str | None:
        values = self._values_in(row)
        try:
            return self._answers[values]
        except KeyError:
            answer = None if None in values else self._constraint.reason(*values[: len(self.axes)])
            self._answers[values] = answer
            return answer


class Space:
    """Axes with their values, and the constraints on them.

    The order of the axes is the order in which rows are completed: axes with the most constraints are first.
    The first value of each axis is the plainest. A row takes it if no other value covers more pairs.
    """

    def __init__(self, axes: Mapping[str, Sequence[str]], constraints: Iterable[Constraint] = ()) -> None:
        self.names = tuple(axes)
        self.values = tuple(tuple(values) for values in axes.values())
        self._asked = [_Asked(tuple(map(self.names.index, constraint.axes)), constraint) for constraint in constraints]
        self._answering: dict[tuple[int, frozenset[int]], list[_Asked]] = {}

    def reason(self, row: Sequence[str | None], asked: Iterable[_Asked] | None = None) -> str | None:
        """The reason if this row, perhaps incomplete, has no meaning; with `asked`, by these constraints alone."""
        for each in self._asked if asked is None else asked:
            if reason := each.reason(row):
                return reason
        return None

    def answering(self, axis: int, filled: frozenset[int]) -> list[_Asked]:
        """The constraints on an axis that a row with values on the axes `filled` can break; others wait for values."""
        try:
            return self._answering[axis, filled]
        except KeyError:
            found = [asked for asked in self._asked if axis in asked.axes and filled.issuperset(asked.axes)]
            self._answering[axis, filled] = found
            return found

    def pairs(self) -> list[Pair]:
        return [
            (a, left, b, right)
            for a, b in itertools.combinations(range(len(self.names)), 2)
            for left, right in itertools.product(self.values[a], self.values[b])
        ]


@dataclass
class Covering:
    """Rows, and the pairs that they cover."""

    space: Space
    rows: list[Row] = field(default_factory=list)
    """The generated rows, without the rows that were present before."""
    covered: set[Pair] = field(default_factory=set)
    excluded: dict[Pair, str] = field(default_factory=dict)
    """Pairs that fit in no row, and the reasons."""
    partners: dict[Place, set[Place]] = field(default_factory=dict)
    """The covered pairs once more: for each value of an axis, the values of other axes that occur with it."""

    @property
    def missing(self) -> set[Pair]:
        return set(self.space.pairs()) - self.covered - self.excluded.keys()

    def add(self, pairs: Sequence[Pair]) -> None:
        self.covered.update(pairs)
        for a, left, b, right in pairs:
            self.partners.setdefault((a, left), set()).add((b, right))
            self.partners.setdefault((b, right), set()).add((a, left))


def pairs_of(row: Row) -> list[Pair]:
    return [(a, row[a], b, row[b]) for a, b in itertools.combinations(range(len(row)), 2)]


def cover(
    space: Space, present: Iterable[Sequence[Pair]], seed: int, shown_by: Callable[[Row], list[Pair]] = pairs_of
) -> Covering:
    """Rows that cover every pair that fits in a row and is not among those present; `shown_by` has those of a row."""
    covering = Covering(space)
    for pairs in present:
        covering.add(pairs)
    randomness = random.Random(seed)
    # Axes with the largest products first: their rows also cover most other pairs.
    waiting = space.pairs()
    randomness.shuffle(waiting)
    waiting.sort(key=lambda pair: -len(space.values[pair[0]]) * len(space.values[pair[2]]))
    for pair in waiting:
        if pair in covering.covered:
            continue
        a, left, b, right = pair
        start: list[str | None] = [None] * len(space.names)
        start[a], start[b] = left, right
        found = _complete(space, start, covering.partners, randomness)
        if isinstance(found, str):
            covering.excluded[pair] = found
        else:
            covering.rows.append(found)
            covering.add(shown_by(found))
    return covering


def _complete(
    space: Space, start: Sequence[str | None], partners: Mapping[Place, set[Place]], randomness: random.Random
) -> Row | str:
    """A row with these values that covers many pairs, or the reason why there is none."""
    if reason := space.reason(start):
        return reason
    row = list(start)
    free = [axis for axis, value in enumerate(row) if value is None]
    filled = frozenset(range(len(row))) - {*free}
    asked_of = [space.answering(axis, filled.union(free[: place + 1])) for place, axis in enumerate(free)]
    obstacle = ""

    def fill(position: int) -> bool:
        nonlocal obstacle
        if position == len(free):
            return True
        axis = free[position]
        for value in _by_gain(space, row, axis, partners, randomness):
            row[axis] = value
            if reason := space.reason(row, asked_of[position]):
                # The first reason is the one most closely related to the pair.
                obstacle = obstacle or reason
            elif fill(position + 1):
                return True
        row[axis] = None
        return False

    if not fill(0):
        return f"nothing goes with both: {obstacle}"
    return tuple(value for value in row if value is not None)


def _by_gain(
    space: Space, row: Sequence[str | None], axis: int, partners: Mapping[Place, set[Place]], randomness: random.Random
) -> list[str]:
    """The values of an axis, sorted by the number of new pairs with the row's values, largest first."""
    others = {(other, value) for other, value in enumerate(row) if value is not None and other != axis}
    values = space.values[axis]
    # The value with the fewest covered pairs brings the most new ones.
    covered = {value: len(others & partners.get((axis, value), _NONE)) for value in values}
    order = list(values)
    randomness.shuffle(order)
    return sorted(order, key=lambda value: (covered[value], value != values[0]))


_NONE: frozenset[Place] = frozenset()
