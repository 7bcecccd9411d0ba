"""Chains that any code may extend: each change is one operation in C, which is done or not done (H5).

Between any two steps of a thread, other code may run: of another thread, a signal handler, a finalizer or a tracer,
which may also raise there. `x += 1` has three steps. So nothing here is changed in place:

1. A thread looks up the last link, and makes the link that should follow it, with all that this link says.
2. It appends the new link to the list `following` of the last one. This is the change.
3. The first in that list is the successor. If it is another thread's, the thread begins again with 1.

An interrupt before 2 changes nothing. One after 2 takes nothing back. References to a link further back are as good:
from there the way leads to the same last link.
"""

from __future__ import annotations

import operator
from typing import Any, Generic, TypeVar


class Link:
    __slots__ = ("following",)

    def __init__(self) -> None:
        # Its successor. Further ones came too late, and belong to no chain.
        self.following: list[Any] = []


L = TypeVar("L", bound=Link)


def last_of(link: L) -> L:
    """Return the last link of a chain."""
    while link.following:
        link = link.following[0]
    return link


def extend(last: L, after: L) -> bool:
    """Let a link follow the last one; False if another link does already."""
    last.following.append(after)
    return last.following[0] is after


N = TypeVar("N", bound=tuple[float, ...])


class _Sum(Link, Generic[N]):
    __slots__ = ("numbers",)

    def __init__(self, numbers: N):
        super().__init__()
        self.numbers = numbers


class Sums(Generic[N]):
    """Numbers to which all threads add, several in one step."""

    def __init__(self, *zeros: Any) -> None:
        # Any link of the chain; the last one has the sums.
        self._some: _Sum[Any] = _Sum(zeros)

    def add(self, *amounts: float) -> None:
        while True:
            last = self._some = last_of(self._some)
            if extend(last, _Sum(tuple(map(operator.add, last.numbers, amounts)))):
                return

    def read(self) -> N:
        last = self._some = last_of(self._some)
        numbers: N = last.numbers
        return numbers


class Most:
    """The largest of some numbers."""

    def __init__(self) -> None:
        self._numbers = {0: None}

    def reaches(self, number: int) -> None:
        if number > self.read():
            self._numbers[number] = None
            for smaller in sorted(self._numbers)[:-1]:
                self._numbers.pop(smaller, None)

    def read(self) -> int:
        return max(self._numbers)
