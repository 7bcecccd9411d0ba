"""The capabilities that a run has observed, and the claims of a vendor that it contradicts.

It judges finished cells by their ids, and imports no JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..oracle.verdicts import Verdict
from ..spec.capabilities import Shown, capabilities, shown_by
from ..spec.depths import Depth
from ..spec.external_callbacks import OWN_FUNCTIONS, callbacks_of_jax
from .table import several

MOST_NAMED = 3
"""So many cells of a failed claim are named; the JSON has all."""

_OF_HOSTCB_ALONE = OWN_FUNCTIONS - {callback.function for callback in callbacks_of_jax()}

NOT_IN_JAX = "not in JAX"


def lacks_function(cell_id: str) -> bool:
    """Whether this would be a cell of JAX's own callbacks, with a function that JAX does not have."""
    shown = shown_by(cell_id)
    return shown is not None and shown.implementation == "jax" and _function(shown) in _OF_HOSTCB_ALONE


REFUSED = "refused"
"""In place of the verdict on a program that had to be refused, and was."""

_SHOW_NOTHING = {Verdict.MISSING.value, Verdict.HARNESS_ERROR.value, REFUSED}


@dataclass(frozen=True)
class Observed:
    """What the cells of one implementation have shown of a capability, at one depth."""

    name: str
    words: str
    implementation: str
    depth: Depth
    passed: int
    failed: tuple[str, ...]
    """The cells that did not pass, those with known failures, too."""

    @property
    def cells(self) -> int:
        return self.passed + len(self.failed)

    @property
    def answer(self) -> str:
        if not self.cells:
            alone = self.implementation == "jax" and self.name in _OF_HOSTCB_ALONE
            return NOT_IN_JAX if alone else "not tested"
        return "partly" if self.passed and self.failed else "no" if self.failed else "yes"

    @property
    def counted(self) -> str:
        """The answer, and the number of cells."""
        return f"{self.answer} ({self.passed} of {self.cells})" if self.cells else self.answer

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "implementation": self.implementation,
            "depth": self.depth.value,
            "observed": self.answer,
            "passed": self.passed,
            "cells": self.cells,
            "failed": list(self.failed),
        }


def observed(verdicts: Iterable[tuple[str, str]]) -> tuple[Observed, ...]:
    """A row for each capability, implementation and depth of these cells, each with its verdict."""
    found = [(cell, verdict, shown) for cell, verdict in verdicts if (shown := shown_by(cell))]
    where = dict.fromkeys((shown.implementation, shown.depth) for *_, shown in found)
    judged = [one for one in found if one[1].partition("(")[0] not in _SHOW_NOTHING]
    rows = []
    for implementation, depth in sorted(where, key=lambda one: (one[0], -one[1].place)):
        own = [one for one in judged if (one[2].implementation, one[2].depth) == (implementation, depth)]
        had = {_function(shown) for _, verdict, shown in own if verdict != Verdict.UNSUPPORTED.value}
        for capability in capabilities():
            about = [one for one in own if capability.shows(one[2])]
            # What is used with a function that the platform refuses everywhere shows nothing of its own.
            of_had = [] if capability.of_functions else [one for one in about if _function(one[2]) in had]
            about = of_had or about
            failed = tuple(cell for cell, verdict, _ in about if verdict != Verdict.PASS.value)
            passed = len(about) - len(failed)
            rows.append(Observed(capability.name, capability.words, implementation, depth, passed, failed))
    return tuple(rows)


def _function(shown: Shown) -> str:
    return shown.callback.function if shown.callback else ""


@dataclass(frozen=True)
class Claim:
    """What a run says of a capability that the platform's vendor claims."""

    name: str
    """As the vendor writes it: `ordered`, or `hostcb:ordered`."""
    cells: int
    failed: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return "failed" if self.failed else "holds" if self.cells else "not tested"

    @property
    def sentence(self) -> str:
        name = self.name.rpartition(":")[2]
        unit = next((one.unit for one in capabilities() if one.name == name), "program")
        if not self.cells:
            return f"claimed capability `{self.name}`: no {unit} of this run tested it"
        if not self.failed:
            return f"claimed capability `{self.name}` holds in {several(self.cells, unit)}"
        more = f" and {len(self.failed) - MOST_NAMED} more" if len(self.failed) > MOST_NAMED else ""
        return (
            f"claimed capability `{self.name}` failed in {len(self.failed)} of {several(self.cells, unit)}:"
            f" {', '.join(self.failed[:MOST_NAMED])}{more}"
        )

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "verdict": self.verdict, "cells": self.cells, "failed": list(self.failed)}


def judged_claims(claims: Sequence[str], rows: Sequence[Observed]) -> tuple[Claim, ...]:
    """Each claim with the cells that it is about, of all depths. A known failure contradicts it like any other."""
    found = []
    for claim in claims:
        implementation, _, name = claim.rpartition(":")
        about = [row for row in rows if row.name == name and implementation in ("", row.implementation)]
        failed = tuple(cell for row in about for cell in row.failed)
        found.append(Claim(claim, sum(row.cells for row in about), failed))
    return tuple(found)


def table_of(rows: Sequence[Observed]) -> tuple[list[str], dict[str, list[Observed]]]:
    """Capabilities down, by their names; across, under these headings, implementations and depths."""
    headings = (
        row.implementation if row.depth is Depth.RUN else f"{row.implementation} at {row.depth.value}" for row in rows
    )
    # A run without hostcb has none of its functions.
    names = dict.fromkeys(row.name for row in rows if row.answer != NOT_IN_JAX)
    return [*dict.fromkeys(headings)], {name: [row for row in rows if row.name == name] for name in names}
