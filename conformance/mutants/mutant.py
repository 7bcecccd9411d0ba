"""A mutant: a change that breaks an implementation, and the symptoms that the suite must find.

This module imports neither JAX nor an implementation: the process that plans and reports does not need them.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..oracle.verdicts import Outcome, Verdict

Library: TypeAlias = Any
"""A module, or another object, with the public names of hostcb."""

Names: TypeAlias = Mapping[str, Any]
"""Replacements by public name, for example `id_tap` or `debug.callback`."""

Plant: TypeAlias = Callable[[Library], Names]
"""Takes a library that works, and returns the replacements that break it."""

Planting = TypeVar("Planting", bound=Callable[..., Names])


def symptom_of(outcome: Outcome) -> str:
    """`lost at callback`: the kind of the first anomaly, and its stage.

    The verdict, `hang` or `crash`, is the kind if the process itself is the evidence.
    """
    kind = outcome.anomaly or outcome.verdict.value
    return f"{kind} at {outcome.stage.value}" if outcome.stage else kind


@dataclass(frozen=True)
class Mutant:
    name: str
    fault: str
    """The fault, in one sentence."""
    plant: Plant
    cells: tuple[str, ...]
    """The planned cells that must kill the mutant, as globs of callback/program/topology."""
    symptoms: tuple[str, ...]
    """The symptoms that count as a kill, as globs."""
    words: str = ""
    """Text that the witness must have, if the symptom could also have another cause."""
    home: str = __package__
    """The module that has the implementation under the mutant's name."""

    @property
    def implementation(self) -> str:
        """The implementation in the ids of this mutant's cells."""
        return f"{self.home}:{self.name}"

    def killed_by(self, outcome: Outcome) -> bool:
        found = any(fnmatch.fnmatchcase(symptom_of(outcome), symptom) for symptom in self.symptoms)
        return found and outcome.verdict is not Verdict.PASS and self.words in outcome.reason


MUTANTS: list[Mutant] = []


def mutant(
    cells: str, symptoms: str, *, words: str = "", name: str | None = None, fault: str | None = None
) -> Callable[[Planting], Planting]:
    """Make a mutant of the function that plants it.

    Its name and its docstring are those of the mutant, unless others are given. The cells have spaces between them.
    """

    def made(plant: Planting) -> Planting:
        named, sentence = name or plant.__name__, fault or inspect.getdoc(plant) or ""
        MUTANTS.append(Mutant(named, sentence, plant, tuple(cells.split()), tuple(symptoms.split(", ")), words))
        return plant

    return made
