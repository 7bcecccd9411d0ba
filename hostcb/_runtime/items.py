"""A value in a queue, and the callback that receives it (H5)."""

from __future__ import annotations

from typing import Any, Protocol

from .._spec.callback import HostCallback

# A receiver, a value, and a position of the ring: its end when Python accepted the value (0 without a ring), or the end
# of the value's own record. The value becomes None when its function begins, and the receiver when the function ends.
Item = list[Any]


class Receiver(Protocol):
    """One callback in one program; it receives values from the queue."""

    @property
    def callback(self) -> HostCallback: ...

    @property
    def nbytes(self) -> int:
        """The size of each of its values."""

    @property
    def nested(self) -> bool:
        """Whether its program was ever started from inside a callback."""

    def deliver(self, device: Any, item: Item) -> None:
        """Take the value out of the item and run the user function on it, without raising."""
