"""The search for the smallest thing that still fails. It knows nothing of cells, and runs nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias, TypeVar

Thing = TypeVar("Thing", bound=Hashable)

Step: TypeAlias = tuple[str, Thing]
"""The text of a simplification, and what it leads to."""


def smallest(
    start: Thing,
    simpler: Callable[[Thing], Iterable[Step[Thing]]],
    fails: Callable[[Thing], bool],
    accepted: Callable[[str, Thing], None] = lambda step, thing: None,
) -> Thing:
    """A thing that fails, of which nothing that is one step simpler fails.

    `start` fails. `simpler` gives the steps from a thing, the largest first; no row of steps may lead back to a thing.
    `fails` is asked at most once about each thing. `accepted` is called after each step that was taken.
    """
    passed: set[Thing] = set()
    found = start
    while True:
        for step, thing in simpler(found):
            if thing in passed:
                continue
            if fails(thing):
                found = thing
                accepted(step, found)
                break
            passed.add(thing)
        else:
            return found
