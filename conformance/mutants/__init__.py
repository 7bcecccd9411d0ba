"""Mutants: implementations that are broken on purpose, by which the suite proves that it notices.

`conformance.mutants:NAME` is one as an implementation, for cells that are run by hand:
`python -m conformance run --cell conformance.mutants:duplicated/id_tap/jit/cpu-8dev`.
"""

from __future__ import annotations

import importlib
from typing import Any

from conformance.mutants import failures, multiplicity, operands, order, outside, results, transformations
from conformance.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *multiplicity.MUTANTS,
    *order.MUTANTS,
    *operands.MUTANTS,
    *transformations.MUTANTS,
    *results.MUTANTS,
    *failures.MUTANTS,
    *outside.MUTANTS,
)


def __getattr__(name: str) -> Any:
    for mutant in MUTANTS:
        if mutant.name == name:
            # Only here is hostcb imported, and with it what it does to a process.
            return importlib.import_module("conformance.mutants.implementation").Broken(mutant)
    raise AttributeError(f"there is no mutant {name!r}")
