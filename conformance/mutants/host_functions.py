"""Faults in what happens around the user's function on the host."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from conformance.mutants.mutant import Library, Names

Fault: TypeAlias = Callable[..., Any]
"""Called with the user's function and with what that is to be called with."""


@dataclass(frozen=True)
class Surrounded:
    """The user's function with a fault around it; equal ones make equal programs, as functions do."""

    function: Any
    fault: Fault

    @property
    def __name__(self) -> str:
        # An error must be able to name the user's function, or cells fail for another reason than the fault.
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.fault(self.function, *arguments, **options)


def surround(library: Library, fault: Fault, *names: str) -> Names:
    """These callbacks of the library, with the fault around every function that they are given."""
    return {name: functools.partial(_with_fault, operator.attrgetter(name)(library), fault) for name in names}


def _with_fault(callback: Any, fault: Fault, function: Any, *arguments: Any, **options: Any) -> Any:
    return callback(Surrounded(function, fault), *arguments, **options)
