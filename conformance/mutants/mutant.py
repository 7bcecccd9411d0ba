"""A mutant: a change that breaks an implementation, and the symptoms that the suite must find.

This module imports neither JAX nor an implementation: the process that plans and reports does not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..oracle.verdicts import Outcome, Stage, Verdict

Library: TypeAlias = Any
"""A module, or another object, with the public names of hostcb."""

Names: TypeAlias = Mapping[str, Any]
"""Replacements by public name, for example `id_tap` or `debug.callback`."""


@dataclass(frozen=True)
class Symptom:
    kind: str
    """The kind of the first anomaly; or a verdict, `hang` or `crash`, if the process itself is the evidence."""
    stage: Stage | None = None
    words: str = ""
    """Text that the witness must have, if the kind could also have another cause."""

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
    case: str
    """The case, in one sentence."""
    plant: Callable[[Library], Names]
    """Takes a library that works, and returns the replacements that break it."""
    cells: tuple[str, ...]
    """The planned cells that must kill the mutant, as globs of callback/program/topology."""
    symptoms: tuple[Symptom, ...]
    """The symptoms that count as a kill."""
    home: str = __package__
    """The module that has the implementation under the mutant's name."""

    @property
    def implementation(self) -> str:
        """The implementation in the ids of this mutant's cells."""
        return f"{self.home}:{self.name}"

    def killed_by(self, outcome: Outcome) -> bool:
        return outcome.verdict is not Verdict.PASS and any(symptom.is_of(outcome) for symptom in self.symptoms)


def at(stage: Stage, *kinds: str, words: str = "") -> tuple[Symptom, ...]:
    """Anomalies of one stage."""
    return tuple(Symptom(kind, stage, words) for kind in kinds)
