"""How a cell fails, as far as a smaller cell must fail in the same way, and how often it does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from ..oracle.verdicts import Outcome, Verdict

Thing = TypeVar("Thing", bound=Hashable)

Step: TypeAlias = tuple[str, Thing]
"""The text of a simplification, and what it leads to."""


def failure_of(outcome: Outcome) -> str | None:
    """How the cell failed, in words that are equal for one bug, as far as verdicts show it; None if it passed."""
    if outcome.verdict is Verdict.PASS:
        return None
    if outcome.verdict not in (Verdict.FAIL, Verdict.UNSUPPORTED):
        # The stage of a crash or a hang comes from stacks, and may differ from run to run.
        return outcome.label
    error = re.search(r"\w*(?:Error|Exception|Interrupt)\b", outcome.reason) if outcome.anomaly == "error" else None
    return outcome.words + (f": {error[0]}" if error else "")


@dataclass
class Counts(Generic[Thing]):
    """Runs things as often as needed, and counts how they fail."""

    run: Callable[[Thing], str | None]
    """Runs a thing once."""
    runs: int
    """The number of runs after which a thing that did not fail is taken to pass, if it fails by chance."""
    wanted: str | None = None
    """The failure that a smaller thing must show."""
    by_chance: bool = False
    found: dict[Thing, Counter[str | None]] = field(default_factory=dict)

    def observe(self, start: Thing) -> str | None:
        """Run the first thing as often as allowed: its most frequent failure is wanted from now on."""
        for _ in range(self.runs):
            self._again(start)
        failures = [failure for failure, _ in self.found[start].most_common() if failure is not None]
        self.wanted = failures[0] if failures else None
        self.by_chance = self.wanted is not None and self.shown(start) < self.runs
        return self.wanted

    def fails(self, thing: Thing) -> bool:
        """Whether a thing shows the wanted failure: in its only run, or in one of several if it comes by chance."""
        return any(self._again(thing) == self.wanted for _ in range(self.runs if self.by_chance else 1))

    def smallest(
        self,
        start: Thing,
        simpler: Callable[[Thing], Iterable[Step[Thing]]],
        accepted: Callable[[str, Thing], None] = lambda step, thing: None,
    ) -> Thing:
        """The smallest thing that shows the wanted failure, which has run as often as allowed."""
        found = smallest(start, simpler, self.fails, accepted)
        self.measure(found)
        if not self.by_chance and self.shown(found) < self.runs:
            # A smaller thing may fail less often than the first one. What passed once may then fail, too.
            self.by_chance = True
            found = smallest(found, simpler, self.fails, accepted)
            self.measure(found)
        return found

    def measure(self, thing: Thing) -> None:
        """Complete the number of runs of a thing."""
        while self.found.setdefault(thing, Counter()).total() < self.runs:
            self._again(thing)

    def shown(self, thing: Thing) -> int:
        """The number of runs in which a thing showed the wanted failure."""
        return self.found[thing][self.wanted]

    def how_often(self, thing: Thing) -> str:
        total = self.found[thing].total()
        return f"in {self.shown(thing)} of {total} run{'s' * (total > 1)}"

    def _again(self, thing: Thing) -> str | None:
        failure = self.run(thing)
        self.found.setdefault(thing, Counter())[failure] += 1
        return failure


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
