"""What a mutant is: a fault that is planted in an implementation, and how the suite must notice it.

This imports neither JAX nor an implementation: the process that plans and reports has no use for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from conformance.verdicts import Outcome, Stage, Verdict

Library: TypeAlias = Any
"""A module, or what stands in for one, with the public names of hostcb."""

Names: TypeAlias = Mapping[str, Any]
"""What replaces public names, `id_tap` or `debug.callback` say."""


@dataclass(frozen=True)
class Symptom:
    kind: str
    """Of the first anomaly; or a verdict, where the process itself is the evidence: hang, crash."""
    stage: Stage | None = None
    words: str = ""
    """What the witness must say, where the kind could be of another cause as well."""

    @staticmethod
    def of(outcome: Outcome) -> Symptom:
        return Symptom(outcome.anomaly or outcome.verdict.value, outcome.stage)

    def is_of(self, outcome: Outcome) -> bool:
        found = Symptom.of(outcome)
        return (self.kind, self.stage) == (found.kind, found.stage) and self.words in outcome.reason

    def __str__(self) -> str:
        return f"{self.kind} at {self.stage.value}" if self.stage else self.kind


@dataclass(frozen=True)
class Mutant:
    name: str
    fault: str
    """What is broken, in one sentence."""
    plant: Callable[[Library], Names]
    """Breaks a library: given one that works, the names that are to be replaced."""
    cells: tuple[str, ...]
    """Planned cells that are to kill it, as globs of callback/program/topology."""
    symptoms: tuple[Symptom, ...]
    """The right reasons to die of."""
    home: str = "conformance.mutants"
    """The module that has the implementation under the mutant's name."""

    @property
    def implementation(self) -> str:
        """What cells of this mutant call their implementation."""
        return f"{self.home}:{self.name}"

    def killed_by(self, outcome: Outcome) -> bool:
        return outcome.verdict is not Verdict.PASS and any(symptom.is_of(outcome) for symptom in self.symptoms)


def at(stage: Stage, *kinds: str, words: str = "") -> tuple[Symptom, ...]:
    """Anomalies of one stage."""
    return tuple(Symptom(kind, stage, words) for kind in kinds)
