"""Host functions: one that records its runs, one that waits until it is released, one that raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ...oracle.history import Recorder

PLANTED = "planted failure"

RELEASED_AFTER = 60.0
"""A held callback goes on after so many seconds even if its case never releases it."""


class Host:
    """A host function that records its runs. It returns its operand, `returns` in turn, or what `answer` makes."""

    def __init__(
        self, site: str, recorder: Recorder, answer: Callable[[Any], Any] | None = None, returns: Sequence[Any] = ()
    ) -> None:
        self.site, self.recorder, self.answer, self.returns = site, recorder, answer, returns
        self.transforms: list[Any] = []
        self.devices: list[Any] = []
        self.count = 0

    def __call__(self, operand: Any, transforms: Any = (), device: Any = None) -> Any:
        self.count += 1
        self.transforms.append(transforms)
        self.devices.append(device)
        with self.recorder.callback(self.site, operand, (), device):
            if self.returns:
                return self.returns[(self.count - 1) % len(self.returns)]
            return jax.tree.map(np.array, operand) if self.answer is None else self.answer(operand)

    def forget(self) -> None:
        self.count = 0
        self.transforms.clear()
        self.devices.clear()


class Held:
    """A host function that waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        self.entered.set()
        self.release.wait(RELEASED_AFTER)
        return np.asarray(operand)


def fail(*_: Any) -> Any:
    """A host function that raises."""
    raise ValueError(PLANTED)


def add_one(operand: Any) -> Any:
    """A host function of which `Case.expected` is the result."""
    return np.asarray(operand) + np.float32(1)
