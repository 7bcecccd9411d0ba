"""The programs and callbacks that have not ended, by name and device: what a barrier waits for (H19, H30)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..._spec.naming import device_name
from ..dispatch.programs import Program
from ..queue.queues import queues
from .executions import tracker

_DOING = {"runs": "running", "waits": "waiting", "is being dispatched": "being dispatched"}


@dataclasses.dataclass(frozen=True)
class Outstanding:
    """Equal programs or callbacks that have not ended.

    Attributes:
        name: the callback, such as `id_tap: log (train.py:12)`, or the program with its callbacks.
        state: `runs`, `waits` for its turn, or `is being dispatched`.
        devices: the `jax.Device`s, of a callback one.
        count: how many there are; a queue may hold thousands of values for one callback.
    """

    name: str
    state: str
    devices: tuple[Any, ...]
    count: int

    def __str__(self) -> str:
        one = f"{self.name}, {_DOING.get(self.state, self.state)} on {', '.join(map(device_name, self.devices))}"
        return one if self.count == 1 else f"{self.count} x {one}"

    def portable(self) -> Outstanding:
        """Return the same with the devices' names, since no other process has these devices."""
        return dataclasses.replace(self, devices=tuple(map(device_name, self.devices)))


class BarrierTimeoutError(TimeoutError):
    """Callbacks have not all run within the timeout of a barrier.

    Raised by `hostcb.barrier_wait`. `outstanding` says what had not ended then: each with `name`, `state`, `devices`
    and `count` (H30).
    """

    def __init__(self, message: str, outstanding: Sequence[Outstanding] = ()):
        super().__init__(message)
        self.outstanding = tuple(outstanding)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), [each.portable() for each in self.outstanding])


def outstanding() -> list[Outstanding]:
    """Return the executions and callbacks that have not ended, the oldest of each device first."""
    counts = Counter(
        [
            *((str(each.program), each.state, each.devices) for each in (*tracker.live(), *tracker.without_order())),
            *((name, state, (queue.device,)) for queue in queues.all() for name, state in queue.waiting()),
        ]
    )
    return [Outstanding(*what, count) for what, count in counts.items()]


def programs() -> set[Program]:
    """Return the programs whose executions or callbacks have not ended."""
    executions = {each.program for each in (*tracker.live(), *tracker.without_order())}
    return executions.union(*(queue.programs() for queue in queues.all()))


def listed(found: Sequence[Outstanding]) -> str:
    return "; ".join(map(str, found)) or "nothing"
