"""How and where a run was made: what its results must say so that somebody else can judge them again.

The run itself writes this into its results. A bundle that was made later could only guess. Nothing here names the user,
the host or a home folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..expectations.entries import Expectation
from ..spec.entry_points import PLATFORMS, entry_points
from ..spec.platforms import platform_named
from ..spec.suite import this_suite

_OF_JAX = ("jax", "jaxlib", "ml-dtypes", "numpy", "opt-einsum", "scipy")
_PACKAGES = ("hostcb", *_OF_JAX, "execnet", "pytest", "pytest-xdist")
_FAMILIES = ("jax-", "libtpu", "nvidia-", "rocm-", "amd-")
_PLUGINS = "jax_plugins"


def packages() -> dict[str, str]:
    """The installed packages that may matter to a callback, with their versions."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = _name(package.metadata["Name"] or "")
        if name in _PACKAGES or name.startswith(_FAMILIES):
            # Of two on the path, the first one is imported.
            found.setdefault(name, package.version)
    return dict(sorted(found.items()))


def plugins() -> dict[str, str]:
    """The packages that bring a plugin of JAX, or the description of a platform, with their versions."""
    points = (*entry_points(_PLUGINS), *entry_points(PLATFORMS))
    # The files of all packages are read for those that have no entry point.
    modules = importlib.metadata.packages_distributions().get(_PLUGINS, ()) if plugin_modules() else ()
    names = {point.dist.name for point in points if point.dist} | {*modules}
    # The folder of a package that was removed in part has no name.
    return {_name(name): importlib.metadata.version(name) for name in sorted(filter(None, names))}


def _name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


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


def plan_digest(ids: Iterable[str]) -> str:
    """The digest of a plan: it depends neither on the order of the cells nor on the release of JAX."""
    return hashlib.sha256("".join(f"{cell_id}\n" for cell_id in sorted({*ids})).encode()).hexdigest()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RequiredCells:
    """The plan from which a run has selected its cells."""

    ids: Sequence[str]
    """All cells, also those that were not selected."""
    lacking: Mapping[str, str]
    """The reasons why this release or this implementation lacks some of them, by id."""

    def as_json(self, ran: Collection[str]) -> dict[str, Any]:
        """The plan without the cells that the results have anyway."""
        known = {*ran}
        return {
            "digest": plan_digest(self.ids),
            "count": len(self.ids),
            "unselected": [one for one in self.ids if one not in known and one not in self.lacking],
            "lacking": dict(self.lacking),
        }


@dataclass
class Provenance:
    """What a run knows of itself before its first cell."""

    options: Mapping[str, Any]
    """The options that decide which cells there are and how they run."""
    required: RequiredCells | None = None
    """None if the cells of the run were named one by one."""
    expectations: Sequence[Path] = ()
    """The files of known failures that the run used."""
    of_wrapped: Sequence[Expectation] = ()
    """The known failures that implementations have because their base has them."""
    begin: str = field(default_factory=now)
    _known_failures: str = ""

    def __post_init__(self) -> None:
        # Read now: the file may change while the cells run.
        if self.expectations:
            texts = [file.read_text(encoding="utf-8") for file in self.expectations]
            self._known_failures = "\n".join((*texts, *(entry.as_toml() for entry in self.of_wrapped)))

    def as_json(self, ran: Collection[str]) -> dict[str, Any]:
        """What the results say; `ran` are the ids of their cells."""
        names = ", ".join(file.name for file in self.expectations)
        known = {"name": names, "text": self._known_failures} if self.expectations else None
        return {
            "suite": this_suite().as_json(),
            "begin": self.begin,
            "end": now(),
            "command": _command(),
            "options": dict(self.options),
            "plan": self.required.as_json(ran) if self.required else None,
            "expectations": known,
            "python": platform.python_version(),
            "platform": platform_named(self.options["platform"]).as_json(),
            "plugins": plugins() if self.options["platform"] != "cpu" else {},
            "packages": packages(),
            "plugin_modules": plugin_modules(),
            "host": host(),
        }


def _command() -> str:
    """The command line of this process, as one would write it."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {module.name.removesuffix('.__main__')}" if module else Path(sys.argv[0]).name
    return without_home(f"{program} {shlex.join(sys.argv[1:])}".rstrip())
