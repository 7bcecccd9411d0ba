"""What barriers wait for: callbacks on all devices, of other threads, and of programs that callbacks start."""

from __future__ import annotations

import threading
from typing import Any

from ..harness.case import BEGINS_WITHIN as PATIENCE
from .covers import EARLY_SECONDS

__all__ = ["EARLY_SECONDS", "PATIENCE", "HeldTap"]


class HeldTap:
    """For the scenarios that are no cases yet: a tap's function that waits until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self, operand: Any, transforms: Any) -> None:
        self.entered.set()
        self.release.wait(2 * PATIENCE)
