"""Threads enough for callbacks that run JAX themselves.

The CPU runtime has a pool of as many threads as the machine has cores, or as it has devices if those are more. Each
device's program and each handler that waits takes one; a callback that runs JAX then finds none left, and all wait for
each other. A larger pool ends that. The runtime takes its size from the environment when JAX makes its CPU client, so
it can only be set before. One device needs no more than the default, and a larger pool costs its matrix products some
speed, so it is left alone.
"""

from __future__ import annotations

import logging
import os

from . import _jax

logger = logging.getLogger("hostcb")

VARIABLES = ("PJRT_NPROC", "NPROC")
THREADS_PER_DEVICE = 4
LEAST_THREADS = 32

_warned = False


def wanted(devices: int) -> int:
    """How many threads several devices need."""
    return max(LEAST_THREADS, THREADS_PER_DEVICE * devices)


def ensure_threads() -> None:
    """Ask for a pool that is large enough, where the CPU client is still to be made."""
    devices = _jax.forced_cpu_devices()
    if devices > 1 and not _jax.backends_exist() and not _is_large_enough(devices):
        os.environ[VARIABLES[0]] = str(wanted(devices))


def warn_if_small(devices: int) -> None:
    """Say once that a program on several CPU devices runs with the pool that JAX chose by itself."""
    global _warned
    if _warned or _is_large_enough(devices):
        return
    _warned = True
    logger.warning(
        "a program with host callbacks runs on %d CPU devices, and hostcb could not ask for enough runtime threads "
        "because it was imported after JAX had started its devices (or before it knew how many there would be): a "
        "callback that runs JAX itself may deadlock. Import hostcb before the first use of JAX, or set %s=%d in the "
        "environment.",
        devices,
        VARIABLES[0],
        wanted(devices),
    )


def _is_large_enough(devices: int) -> bool:
    if any(variable in os.environ for variable in VARIABLES):
        # Somebody chose, we ourselves or the user.
        return True
    return (os.cpu_count() or 1) >= wanted(devices)
