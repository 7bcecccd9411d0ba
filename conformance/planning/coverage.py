"""The coverage of a plan: covered and excluded pairs of the axes, with the reasons.

The plan's cells are counted; the way in which they were selected does not matter here.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..model.transforms import TRANSFORMS
from .cells import Plan, ProgramCell
from .selection import Choice, covering_of, pairs_in, why_not

LENGTHS = (1, 2, 3, 4)

NOT_DRAWN = "not drawn: --full draws more, and another seed of it others"


@dataclass(frozen=True)
class AxesCoverage:
    """Two axes, and the numbers of possible, covered, missing and excluded pairs of their values."""

    axes: tuple[str, str]
    possible: int
    """Pairs that some cell can hold."""
    covered: int
    missing: tuple[tuple[str, str], ...]
    excluded: dict[tuple[str, str], str]
    """Pairs that no cell can hold, and why."""


@dataclass(frozen=True)
class LengthCoverage:
    """Compositions of this many transforms, with any callback."""

    length: int
    possible: int
    covered: int
    excluded: dict[str, int]
    """The number of compositions without meaning, by reason."""


@dataclass(frozen=True)
class Coverage:
    implementation: str
    cells: int
    values: dict[str, tuple[str, ...]]
    pairs: tuple[AxesCoverage, ...]
    compositions: tuple[LengthCoverage, ...]

    def __str__(self) -> str:
        lines = [f"{self.implementation}: {self.cells} cells of programs", "", "axes:"]
        lines += [f"  {axis}: {' '.join(values)}" for axis, values in self.values.items()]
        lines += ["", "pairs of values, by pair of axes: covered/possible, and what means nothing:"]
        for pairs in self.pairs:
            lines.append(f"  {' x '.join(pairs.axes)}: {pairs.covered}/{pairs.possible}")
            lines += [f"      missing: {left}, {right}" for left, right in pairs.missing]
            reasons = Counter(pairs.excluded.values())
            lines += [f"      excluded {number}: {reason}" for reason, number in reasons.items()]
        lines += ["", "compositions of transforms, by length: covered/possible, and what is left out:"]
        for length in self.compositions:
            lines.append(f"  {length.length}: {length.covered}/{length.possible}")
            if length.possible > length.covered:
                lines.append(f"      left out {length.possible - length.covered}: {NOT_DRAWN}")
            lines += [f"      excluded {number}: {reason}" for reason, number in length.excluded.items()]
        return "\n".join(lines)


def coverage_of(
    plan: Plan, implementation: str, platform: str, device_counts: Sequence[int], choice: Choice
) -> Coverage:
    cells = [c for c in plan.cells if isinstance(c, ProgramCell) and c.implementation == implementation]
    covering = covering_of(implementation, platform, tuple(device_counts), choice)
    space = covering.space
    covered = {pair for cell in cells for pair in pairs_in(cell)}
    # These pairs are in no other cell: on a release that lacks nothing they are covered.
    left_out = {
        pair: cell.lacking or ""
        for cell in plan.lacking
        if cell.implementation == implementation
        for pair in pairs_in(cell)
    }
    by_axes: list[AxesCoverage] = []
    for a, b in itertools.combinations(range(len(space.names)), 2):
        excluded: dict[tuple[str, str], str] = {}
        missing: list[tuple[str, str]] = []
        found = 0
        for left, right in itertools.product(space.values[a], space.values[b]):
            pair = (a, left, b, right)
            if pair in covered:
                found += 1
            elif pair in covering.excluded:
                excluded[left, right] = covering.excluded[pair]
            elif pair in left_out:
                excluded[left, right] = left_out[pair]
            else:
                missing.append((left, right))
        names = (space.names[a], space.names[b])
        by_axes.append(AxesCoverage(names, found + len(missing), found, tuple(missing), excluded))
    values = dict(zip(space.names, space.values, strict=True))
    lengths = tuple(_length_coverage(cells, length) for length in LENGTHS)
    return Coverage(implementation, len(cells), values, tuple(by_axes), lengths)


def _length_coverage(cells: Sequence[ProgramCell], length: int) -> LengthCoverage:
    possible, reasons = _compositions(length)
    excluded = Counter(reasons)
    present = {cell.program.names for cell in cells if len(cell.program.names) == length}
    for composition in present - possible:
        # This composition was planned by hand, and is known to be exact.
        excluded[why_not(composition) or ""] -= 1
    return LengthCoverage(length, len(possible | present), len(present), dict(+excluded))


@functools.cache
def _compositions(length: int) -> tuple[frozenset[tuple[str, ...]], Counter[str]]:
    """The compositions with a meaning, and the number of those without, by reason."""
    names = [name for name in TRANSFORMS if length == 1 or name != "eager"]
    reasons = {composition: why_not(composition) for composition in itertools.product(names, repeat=length)}
    possible = frozenset(composition for composition, reason in reasons.items() if reason is None)
    return possible, Counter(reason for reason in reasons.values() if reason is not None)
