"""Faults in the code around the user's function on the host."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .mutant import Library, Names, Plant

HostFault: TypeAlias = Callable[..., Any]
"""Called with the user's function and with that function's arguments."""


@dataclass(frozen=True)
class Surrounded:
    """The user's function with a fault around it; equal objects make equal programs, as with functions."""

    function: Any
    fault: HostFault

    @property
    def __name__(self) -> str:
        # An error must name the user's function; otherwise cells fail for another reason than the fault.
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.fault(self.function, *arguments, **options)


def around(*names: str, having: Callable[[], Any] | None = None) -> Callable[[HostFault], Plant]:
    """Make a function that breaks a library of one that is called around each user's function.

    What `having` makes for each library is its first argument.
    """

    def planted(fault: HostFault) -> Plant:
        own = lambda: functools.partial(fault, having()) if having else fault
        return functools.wraps(fault)(lambda library: surround(library, own(), *names))

    return planted


def surround(library: Library, fault: HostFault, *names: str) -> Names:
    """These callbacks of the library, with the fault around each function that the user passes."""

    def callback(own: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        return own(Surrounded(function, fault), *arguments, **options)

    return instead(*names)(callback)(library)


def instead(*names: str) -> Callable[[HostFault], Plant]:
    """Make a function that breaks a library of one that stands in for callbacks, and receives each of them first."""

    def planted(fault: HostFault) -> Plant:
        stand_in = lambda library, name: functools.partial(fault, operator.attrgetter(name)(library))
        return functools.wraps(fault)(lambda library: {name: stand_in(library, name) for name in names})

    return planted


def reporting(library: Library, report: Callable[[Any], None]) -> Names:
    """The barrier, which calls this with the failures that it would raise, or with None."""

    def barrier_wait() -> None:
        failed = None
        try:
            library.barrier_wait()
        except library.CallbackException as error:
            failed = error
        report(failed)

    return {"barrier_wait": barrier_wait}


def at_barriers(library: Library, held: deque[Callable[[], Any]]) -> Names:
    """The barrier, which then calls what is held, the first first."""

    def barrier_wait() -> None:
        library.barrier_wait()
        while held:
            held.popleft()()

    return {"barrier_wait": barrier_wait}
