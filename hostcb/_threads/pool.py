"""A thread pool of the CPU runtime that is large enough for callbacks that run JAX.

The pool has as many threads as the process may use cores, or as JAX has CPU devices if those are more. The program of
each device and each waiting handler takes one thread. A callback that runs JAX then finds no free thread, and all of
them deadlock. A larger pool avoids this. The runtime reads its size from the environment when JAX makes the CPU client,
so hostcb sets it then. For one device the default is enough, and a larger pool slows matrix products; hostcb leaves
it.
"""

from __future__ import annotations

import logging
import os

from .. import _compat

logger = logging.getLogger("hostcb")

VARIABLES = ("PJRT_NPROC", "NPROC")
THREADS_PER_DEVICE = 4
LEAST_THREADS = 32

_warned = False


def wanted(devices: int) -> int:
    """Return the number of threads that so many devices need."""
    return max(LEAST_THREADS, THREADS_PER_DEVICE * devices)


def ensure_threads() -> None:
    """Ask for a pool that is large enough; to be called before JAX makes the CPU client."""
    devices = _compat.forced_cpu_devices()
    if devices > 1 and not _is_large_enough(devices):
        os.environ[VARIABLES[0]] = str(wanted(devices))


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
    if any(variable in os.environ for variable in VARIABLES):
        # hostcb or the user has set the size.
        return True
    return usable_cores() >= wanted(devices)


def usable_cores() -> int:
    """The number of cores that this process may use; the runtime makes its pool for these."""
    # A container or a batch system gives a process some of the machine's cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_compat.before_cpu_client(ensure_threads)
