"""Python's switch interval in a test, which hostcb leaves alone meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from hostcb._threads import switching

from .helpers import DEADLINE

FLAG = "hostcb_switch_interval"


@contextmanager
def switch_interval_of(seconds: float) -> Iterator[None]:
    """Set the interval, and put back the one before; not one that hostcb has shortened for callbacks of earlier tests.

    hostcb gives up to restore its own after a minute, and a test under load may take longer.
    """
    jax.config.update(FLAG, 0)
    end = time.monotonic() + DEADLINE
    while switching.switch_interval._changing.locked():
        assert time.monotonic() < end
        time.sleep(0.01)
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        jax.config.update(FLAG, None)
