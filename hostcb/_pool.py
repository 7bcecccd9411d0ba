"""Threads enough for callbacks that run JAX themselves.

The CPU runtime has a pool of as many threads as the machine has cores, or as it has devices if those are more. Each
device's program and each handler that waits takes one. A callback that runs JAX on several devices then finds none
left, and all wait for each other. More threads than can wait at once end that; the runtime takes their number from the
environment when JAX makes its CPU client, so it can only be set before that.
"""

from __future__ import annotations

import logging
import os
import re

from . import _jax

logger = logging.getLogger("hostcb")

VARIABLES = ("PJRT_NPROC", "NPROC")
THREADS_PER_DEVICE = 4
LEAST_THREADS = 32


def wanted() -> int:
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    devices = int(forced.group(1)) if forced else 1
    return max(LEAST_THREADS, THREADS_PER_DEVICE * devices)


def ensure_threads() -> None:
    """Ask for a pool that is large enough; where that comes too late, say so."""
    if any(variable in os.environ for variable in VARIABLES):
        return
    if not _jax.backends_exist():
        os.environ[VARIABLES[0]] = str(wanted())
        return
    logger.warning(
        "hostcb was imported after JAX had started its devices, so it could not ask for more runtime threads: a "
        "callback that runs JAX itself on several CPU devices may deadlock. Import hostcb before the first use of "
        "JAX, or set %s=%d in the environment.",
        VARIABLES[0],
        wanted(),
    )
