"""The machine and the software of a run, for its report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..spec.depths import Depth
from ..spec.platform_targets import TARGETS
from ..spec.platforms import platform_named
from ..spec.topology import Topology

_OF_RUNTIMES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"),
    *("LIBTPU_INIT_ARGS", "NCCL_DEBUG", "TF_CPP_MIN_LOG_LEVEL"),
    *("XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"),
)


def run_info(devices: Sequence[jax.Device], topology: Topology) -> dict[str, Any]:
    return _of_process(devices, topology) | _of_depth(topology)


def _of_depth(topology: Topology) -> dict[str, Any]:
    """What a worker says where nothing runs."""
    if topology.depth is Depth.RUN:
        return {}
    info: dict[str, Any] = {"platform": topology.platform, "depth": topology.depth.value}
    if topology.depth is Depth.LOWER:
        # The devices are those of the CPU in this process, for any platform.
        return info | {"platform_version": "", "device_kind": ""}
    compiler = TARGETS[topology.platform].compiler
    assert compiler is not None
    name = compiler.names.get((topology.processes, topology.device_count), "")
    return info | {
        "compiler": f"{compiler.package} {importlib.metadata.version(compiler.package)}",
        "compiled_for": name,
    }


def _of_process(devices: Sequence[jax.Device], topology: Topology) -> dict[str, Any]:
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
        # The size of the CPU client's thread pool, if the user has set it: callbacks that run JAX depend on it.
        "PJRT_NPROC": os.environ.get("PJRT_NPROC", ""),
        "NPROC": os.environ.get("NPROC", ""),
        "variables": _variables(topology),
        "process_count": jax.process_count(),
        "os": platform.platform(),
        "cores": os.cpu_count(),
    }


def _variables(topology: Topology) -> str:
    """The environment variables that JAX and the runtimes of devices read: no others, which may hold secrets."""
    own = platform_named(topology.platform).environment
    names = {name.upper() for name in jax.config.values} | {*_OF_RUNTIMES, *own}
    return shlex.join(f"{name}={os.environ[name]}" for name in sorted(names) if name in os.environ)
