"""A function that at most one thread at a time runs, whatever interrupts it (H5, H12).

A lock would not do. An interrupt may come when the block of a `with` statement has ended and `__exit__` has not begun:
a tracer runs there. The lock would then stay locked for ever. So the function runs inside of a generator. C refuses to
resume a generator that is running. It sees the end of the run, too, since the generator's frame is left, by an exception as
well. An exception is also the generator's end, and another one follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from .chains import Link, extend, last_of

Turns = Generator[None, Any, None]


class _Holder(Link):
    __slots__ = ("turns",)

    def __init__(self, turns: Turns):
        super().__init__()
        self.turns = turns


class Baton:
    """Lets one thread at a time go on with the generator that `make` makes: it has a turn after each `yield`."""

    def __init__(self, make: Callable[[], Turns]):
        self._make = make
        self._some = self._holder()

    def is_held(self) -> bool:
        """Whether a thread has its turn."""
        return self._last().turns.gi_running  # type: ignore[attr-defined]

    def take(self, sent: Any) -> None:
        """Have a turn, for which `yield` returns `sent`, unless another thread has one."""
        while True:
            holder = self._last()
            try:
                holder.turns.send(sent)
            except ValueError as error:
                if _was_raised_inside(error):
                    raise
                # It is running.
            except StopIteration:
                # An earlier turn was interrupted.
                extend(holder, self._holder())
                continue
            return

    def _holder(self) -> _Holder:
        turns = self._make()
        next(turns)
        return _Holder(turns)

    def _last(self) -> _Holder:
        last = self._some = last_of(self._some)
        return last


def _was_raised_inside(error: BaseException) -> bool:
    """Whether a frame of the generator has raised the error, and not the generator itself."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None
