"""The values in a queue, and the callbacks that receive them (H5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import starmap
from operator import call
from typing import Any, Protocol

from ..._spec.callback import HostCallback
from ..._threads.chains import Link, extend, last_of


class Receiver(Protocol):
    """One callback in one program; it receives values from the queue."""

    @property
    def callback(self) -> HostCallback: ...

    @property
    def nbytes(self) -> int:
        """The size of each of its values."""

    @property
    def program(self) -> Any: ...

    @property
    def nested(self) -> bool:
        """Whether its program was ever started from inside a callback."""

    def deliver(self, device: Any, item: Item) -> None:
        """Run the user function on the item's value, without raising, unless it has not begun."""


class Item:
    """A value, and a position of the ring: its end when Python accepted the value, or the end of the value's record."""

    __slots__ = ("_once", "arrays", "ended", "position", "receiver")

    def __init__(self, receiver: Receiver, arrays: Sequence[Any], position: int = 0):
        self.receiver = receiver
        self.arrays = arrays
        self.position = position
        self.ended = False
        # Empty as soon as the function has begun. Of one array, as of nearly every value, or of all arrays together.
        self._once: Any = iter(arrays if len(arrays) == 1 else ((arrays,),))

    @property
    def begun(self) -> bool:
        return not self._once.__length_hint__()

    def hand_to(self, function: Callable[..., Any]) -> None:
        """Call the function with the arrays, unless it has begun before.

        One expression does both, in C, so no other code can come between: it takes the arrays out of `_once` and calls
        the function with them. A `StopIteration` of the function is raised like all its exceptions.
        """
        if len(self.arrays) == 1:
            reduce(call, self._once, function)
        else:
            min(map(partial(starmap, function), self._once), key=next, default=None)


class _Accepted(Link):
    """An item's link in the chain of a queue, which lets go of the item some time after its end."""

    __slots__ = ("item", "number", "total")

    def __init__(self, item: Item | None, number: int, total: int):
        self.following = []
        self.item = item
        # How many values the queue has accepted up to this one, and their bytes.
        self.number, self.total = number, total


class Items:
    """The values that Python has accepted for a device, in their order.

    One step accepts a value. One step, `item.ended = True`, ends the oldest, and may come twice. All numbers follow
    from two links: the last one, and the last one that has ended.
    """

    def __init__(self) -> None:
        # Links of the chain: at most the last one, and at most the last one that has ended.
        self._last = self._past = _Accepted(None, 0, 0)

    def accept(
        self, receiver: Receiver, arrays: Sequence[Any], position: int, is_room: Callable[[int, int, int], bool]
    ) -> bool:
        """Accept a value if there is room, beside so many values with so many bytes, for its own bytes."""
        while True:
            # Others may have ended since then. So what waits is never more than this.
            last, past = self._newest(), self._past
            if not is_room(last.number - past.number, last.total - past.total, receiver.nbytes):
                return False
            item = Item(receiver, arrays, position)
            accepted = _Accepted(item, last.number + 1, last.total + receiver.nbytes)
            if extend(last, accepted):
                self._last = accepted
                return True

    def __iter__(self) -> Iterator[Item]:
        """Yield the items whose functions have not ended, the oldest first."""
        link = self._ended()
        while link.following:
            link = link.following[0]
            item = link.item
            if item is not None and not item.ended:
                yield item

    def oldest(self) -> Item | None:
        """Return the oldest item whose function has not ended; it may have begun."""
        if not self._past.following:
            return None
        while True:
            following = self._ended().following
            if not following:
                return None
            item: Item | None = following[0].item
            if item is not None and not item.ended:
                return item

    def popleft(self) -> None:
        """Let go of the oldest items whose functions have ended. Each look for others does so as well."""
        self._ended()

    def accepted(self) -> tuple[int, int]:
        """Return how many values were ever accepted, and their bytes."""
        last = self._newest()
        return last.number, last.total

    def ended(self) -> tuple[int, int]:
        """Return how many functions have ever ended, and the bytes of their values."""
        past = self._ended()
        return past.number, past.total

    def held(self) -> tuple[int, int]:
        """Return how many functions have not ended, and the bytes of their values."""
        past = self._ended()
        last = self._newest()
        return last.number - past.number, last.total - past.total

    def _newest(self) -> _Accepted:
        last = self._last = last_of(self._last)
        return last

    def _ended(self) -> _Accepted:
        past = self._past
        while past.following:
            link = past.following[0]
            item = link.item
            if item is not None and not item.ended:
                break
            link.item = None
            past = link
        self._past = past
        return past
