"""Faults in the code around the user's function on the host."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .mutant import Library, Names

Fault: TypeAlias = Callable[..., Any]
"""Called with the user's function and with that function's arguments."""


@dataclass(frozen=True)
class Surrounded:
    """The user's function with a fault around it; equal objects make equal programs, as with functions."""

    function: Any
    fault: Fault

    @property
    def __name__(self) -> str:
        # An error must name the user's function; otherwise cells fail for another reason than the fault.
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.fault(self.function, *arguments, **options)


def surround(library: Library, fault: Fault, *names: str) -> Names:
    """These callbacks of the library, with the fault around each function that the user passes."""
    return {name: functools.partial(_with_fault, operator.attrgetter(name)(library), fault) for name in names}


def _with_fault(callback: Any, fault: Fault, function: Any, *arguments: Any, **options: Any) -> Any:
    return callback(Surrounded(function, fault), *arguments, **options)
