"""The machine and the software of a run, for its report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def run_info(devices: Sequence[jax.Device]) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "platform": devices[0].platform,
        "platform_version": getattr(devices[0].client, "platform_version", ""),
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        # The size of the CPU client's thread pool: callbacks that run JAX depend on it.
        "PJRT_NPROC": os.environ.get("PJRT_NPROC", ""),
        "NPROC": os.environ.get("NPROC", ""),
        "os": platform.platform(),
        "cores": os.cpu_count(),
    }
