"""A platform for JAX made of another one: its plugin, and what JAX needs for callbacks on it.

JAX finds the package by its entry point in the group `jax_plugins`, and calls `initialize`.
"""

from __future__ import annotations

import os

from .building import base_plugin, library
from .names import NAME

__all__ = ["initialize"]


def initialize() -> None:
    """Register the platform with JAX."""
    from jax._src import xla_bridge

    base = base_plugin()
    if base is None:
        raise RuntimeError("the toy platform needs the package lammps-jax-pjrt-cpu")
    os.environ["TOY_BASE_PLUGIN"] = str(base)
    devices = int(os.environ.get("TOY_DEVICES", "2"))
    xla_bridge.register_plugin(NAME, priority=10, library_path=str(library()), options={"cpu_device_count": devices})
    if not os.environ.get("TOY_WITHOUT_CALLBACKS"):
        from . import callbacks

        callbacks.install()
