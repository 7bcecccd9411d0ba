"""Mutants: implementations that are broken on purpose, to prove that the suite detects bugs.

`conformance.mutants:NAME` is a mutant as an implementation, for cells that you run by hand:
`python -m conformance run --cell conformance.mutants:duplicated/id_tap/jit/cpu-8dev`.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import (  # noqa: F401 - each makes its mutants
    failures,
    multiplicity,
    operands,
    order,
    outside,
    processes,
    results,
    transformations,
)
from .mutant import MUTANTS as MUTANTS


def __getattr__(name: str) -> Any:
    for mutant in MUTANTS:
        if mutant.name == name:
            # Only this line imports hostcb, since its import changes the process.
            return importlib.import_module(f"{__name__}.implementation").Broken(mutant)
    raise AttributeError(f"there is no mutant {name!r}")
