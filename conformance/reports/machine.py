"""The host and the packages of a run, for its results. Nothing here names the user, the host or a home folder."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import re
from pathlib import Path
from typing import Any

_PACKAGES = (
    "execnet",
    "hostcb",
    "jax",
    "jaxlib",
    "ml-dtypes",
    "numpy",
    "opt-einsum",
    "pytest",
    "pytest-xdist",
    "scipy",
)
_FAMILIES = ("jax-", "libtpu", "nvidia-", "rocm-", "amd-")
_PLUGINS = "jax_plugins"


def packages() -> dict[str, str]:
    """The installed packages that may matter to a callback, with their versions; plugins of JAX are among them."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"] or "").lower()
        is_plugin = any(entry.group == _PLUGINS for entry in package.entry_points)
        if name in _PACKAGES or name.startswith(_FAMILIES) or is_plugin:
            # Of two on the path, the first one is imported.
            found.setdefault(name, package.version)
    return dict(sorted(found.items()))


def plugin_modules() -> list[str]:
    """The plugins of JAX that are modules in its namespace package, which need no entry point."""
    try:
        namespace = __import__(_PLUGINS)
    except ImportError:
        return []
    return sorted(module.name for module in pkgutil.iter_modules(namespace.__path__))


def host() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "distribution": _distribution(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
    }


def without_home(text: str) -> str:
    """The text with `~` in the place of the user's home folder."""
    try:
        home = Path.home()
    except RuntimeError:
        # A container may run as a user that it does not know.
        return text
    # A service may have / for its home. JSON has its own way to write what is not ASCII.
    for name in {str(home), json.dumps(str(home))[1:-1]} if len(home.parts) > 1 else ():
        text = re.sub(rf"{re.escape(name)}(?![\w.-])", "~", text)
    return text


def _distribution() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return ""


def _cpu() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*: (.+)$", text, re.MULTILINE):
            return found[1]
    return platform.processor()


def _memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None
