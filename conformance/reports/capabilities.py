"""The capabilities that a run has observed, and the claims of a vendor that it contradicts.

It judges finished cells by their ids, and imports no JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..oracle.verdicts import Verdict
from ..spec.capabilities import Shown, capabilities, shown_by
from ..spec.depths import Depth
from ..spec.external_callbacks import OWN_FUNCTIONS, callbacks_of_jax
from .table import several

if TYPE_CHECKING:
    from .results import CellRecord

MOST_NAMED = 3
"""So many cells of a failed claim are named; the JSON has all."""

_OF_HOSTCB_ALONE = OWN_FUNCTIONS - {callback.function for callback in callbacks_of_jax()}

NOT_IN_JAX = "not in JAX"


def lacks_function(cell_id: str) -> bool:
    """Whether this would be a cell of JAX's own callbacks, with a function that JAX does not have."""
    shown = shown_by(cell_id)
    return shown is not None and shown.implementation == "jax" and _function(shown) in _OF_HOSTCB_ALONE


_SHOW_NOTHING = {Verdict.MISSING.value, Verdict.HARNESS_ERROR.value}


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


def observed(results: Iterable[CellRecord]) -> tuple[Observed, ...]:
    """A row for each capability, implementation and depth of the results."""
    found = [(result, shown) for result in results if (shown := shown_by(result.id))]
    where = dict.fromkeys((shown.implementation, shown.depth) for _, shown in found)
    judged = [
        (result, shown) for result, shown in found if not result.is_refused and _verdict(result) not in _SHOW_NOTHING
    ]
    rows = []
    for implementation, depth in sorted(where, key=lambda one: (one[0], -one[1].place)):
        own = [one for one in judged if (one[1].implementation, one[1].depth) == (implementation, depth)]
        had = _of_functions_that_are_had(own)
        for capability in capabilities():
            # What is used with a function that the platform refuses everywhere shows nothing of its own.
            about = [] if capability.of_functions else [result for result, shown in had if capability.shows(shown)]
            about = about or [result for result, shown in own if capability.shows(shown)]
            failed = tuple(result.id for result in about if result.verdict != Verdict.PASS.value)
            passed = len(about) - len(failed)
            rows.append(Observed(capability.name, capability.words, implementation, depth, passed, failed))
    return tuple(rows)


def _of_functions_that_are_had(found: Sequence[tuple[CellRecord, Shown]]) -> Sequence[tuple[CellRecord, Shown]]:
    """The cells without those of functions with which every cell is unsupported."""
    had = {_function(shown) for result, shown in found if result.verdict != Verdict.UNSUPPORTED.value}
    return [one for one in found if _function(one[1]) in had]


def _function(shown: Shown) -> str:
    return shown.callback.function if shown.callback else ""


def _verdict(result: CellRecord) -> str:
    return result.verdict.partition("(")[0]


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
