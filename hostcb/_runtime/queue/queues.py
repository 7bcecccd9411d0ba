"""The queues of all devices: their budget, and their end."""

from __future__ import annotations

import logging
from typing import Any

from ... import _compat
from ..._spec import flags
from ..._threads.running import inside_callback
from .counters import retire
from .device_queue import DeviceQueue

logger = logging.getLogger("hostcb")


class Queues(dict[Any, DeviceQueue]):
    """The queue of each device, made at its first use."""

    def __missing__(self, device: Any) -> DeviceQueue:
        return self.setdefault(device, DeviceQueue(device))

    def all(self) -> list[DeviceQueue]:
        return list(self.values())

    def set_budget(self, budget: int) -> None:
        """Set the budget of the existing queues, when `jax.config.update` changes it."""
        for each in self.all():
            each.budget = budget
            if each.ring is not None:
                each.ring.counters.budget = budget

    def stop(self) -> None:
        """Drain and end every queue."""
        for each in self.all():
            each.stop()
        logger.debug("the consumers of tapped values have stopped")

    def close(self, at_once: bool) -> None:
        """End every queue's consumer, for ever, or at once even if it runs a function, and start no other."""
        DeviceQueue.closed = True
        if not at_once:
            self.stop()
            return
        for each in self.all():
            each.consumer = None
            if each.ring is not None:
                each.ring.attend(False)

    def forget_devices(self) -> None:
        """Run the queues of devices that are gone to their end, and drop these queues."""
        if inside_callback():
            # Waiting here would wait for this callback. The consumers run the rest, and these queues stay, empty.
            return
        self.stop()
        retire(self.all())
        self.clear()


queues = Queues()
flags.max_queue_byte_size.listeners.append(queues.set_budget)
_compat.on_backends_cleared(queues.forget_devices)
