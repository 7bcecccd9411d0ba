"""The end of a process with its parent."""

from __future__ import annotations

import ctypes
import signal
import sys


def end_with_parent() -> None:
    """End this process with its parent, if the system can: what a killed run has started must not outlive it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
