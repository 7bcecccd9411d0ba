"""A thread pool of the CPU runtime that is large enough for callbacks that run JAX.

The pool has as many threads as the process may use cores, or as JAX has CPU devices if those are more. The program of
each device and each waiting handler takes one thread. A callback that runs JAX then finds no free thread, and all of
them deadlock. A larger pool avoids this. The runtime reads its size from the environment when JAX makes the CPU client,
so hostcb sets the variable for that moment. For one device the default is enough, and a larger pool slows matrix
products; hostcb leaves it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from .. import _compat

logger = logging.getLogger("hostcb")

VARIABLES = ("PJRT_NPROC", "NPROC")
THREADS_PER_DEVICE = 4
LEAST_THREADS = 32

_warned = False
# The threads that hostcb asked for when JAX made the CPU client.
_asked_for = 0


def wanted(devices: int) -> int:
    """Return the number of threads that so many devices need."""
    return max(LEAST_THREADS, THREADS_PER_DEVICE * devices)


@contextlib.contextmanager
def enough_threads() -> Iterator[None]:
    """Ask for a pool that is large enough while JAX makes the CPU client; later child processes inherit no variable."""
    global _asked_for
    devices = _compat.forced_cpu_devices()
    _asked_for = 0
    if devices == 1 or _is_large_enough(devices):
        yield
        return
    _asked_for = wanted(devices)
    os.environ[VARIABLES[0]] = str(_asked_for)
    try:
        yield
    finally:
        os.environ.pop(VARIABLES[0], None)


def warn_if_small(devices: int) -> None:
    """Warn once that a program on several CPU devices runs with JAX's default pool, which is too small."""
    global _warned
    if _warned or _is_large_enough(devices):
        return
    _warned = True
    logger.warning(
        "a program with host callbacks runs on %d CPU devices, and hostcb could not ask for enough runtime threads "
        "because it was imported after JAX had started its devices: a callback that runs JAX itself may deadlock. "
        "Import hostcb before the first use of JAX, or set %s=%d in the environment.",
        devices,
        VARIABLES[0],
        wanted(devices),
    )


def _is_large_enough(devices: int) -> bool:
    # The user may have set the size.
    if any(variable in os.environ for variable in VARIABLES):
        return True
    return max(_asked_for, usable_cores()) >= wanted(devices)


def usable_cores() -> int:
    """The number of cores that this process may use; the runtime makes its pool for these."""
    # A container or a batch system gives a process some of the machine's cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_compat.while_cpu_client_is_made(enough_threads)
