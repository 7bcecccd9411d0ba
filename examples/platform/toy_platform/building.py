"""Compiles the plugin's library with the machine's C compiler, when it is needed first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .names import DEVICES_PLATFORM

SOURCE = Path(__file__).with_name("shim.c")
LIBRARY = Path(__file__).with_name("libtoy.so")
BASE = "lammps_jax_pjrt_cpu"
"""The package with the PJRT plugin that this one is made of."""


def base_plugin() -> Path | None:
    """The library of the plugin that this one is made of."""
    found = importlib.util.find_spec(BASE)
    return Path(found.origin).with_name("pjrt_c_api_cpu_plugin.so") if found and found.origin else None


def compiler() -> str | None:
    return shutil.which("cc")


def library() -> Path:
    """The compiled library, as new as its source."""
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > SOURCE.stat().st_mtime:
        return LIBRARY
    found = compiler()
    if found is None:
        raise RuntimeError("the toy platform needs a C compiler: there is no `cc` on the PATH")
    # Several processes may compile at the same time: each replaces the library in one step.
    descriptor, name = tempfile.mkstemp(dir=LIBRARY.parent, suffix=".so")
    os.close(descriptor)
    options = ("-O1", "-shared", "-fPIC", "-Wall", f'-DTOY_DEVICES_PLATFORM="{DEVICES_PLATFORM}"')
    subprocess.run([found, *options, str(SOURCE), "-o", name, "-ldl"], check=True)
    Path(name).replace(LIBRARY)
    return LIBRARY
