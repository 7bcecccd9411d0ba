"""A function that at most one thread at a time runs, whatever interrupts it (H5, H12).

A lock would not do. An interrupt may come when the block of a `with` statement has ended and `__exit__` has not begun:
a tracer runs there. The lock would then stay locked for ever. What C takes, it gives back after any exception, and no
other code comes between. CPython promises that a list seems to be empty while it is sorted. Sorting an empty list does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .running import runs_callbacks


@runs_callbacks
def _run(function: Callable[[], None], element: int) -> int:
    function()
    return element


class Baton:
    """Lets one thread at a time run a function."""

    def __init__(self) -> None:
        self._list = [0]

    def is_held(self) -> bool:
        """Whether a thread runs a function."""
        return not self._list

    def take(self, function: Callable[[], None]) -> None:
        """Run a function, unless another thread runs one, or this one in a deeper frame."""
        self._list.sort(key=partial(_run, function))
