"""The version of the suite, the commit of its checkout, and names for the sources of packages. This needs no JAX."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .package import PACKAGE


@functools.cache
def source_digest(package: str) -> str:
    """A name for the Python files of a package or a module; empty if there are none. This does not import it."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return ""
    found = hashlib.sha256()
    for root in spec.submodule_search_locations or ():
        for file in sorted(Path(root).rglob("*.py")):
            found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        found.update(Path(spec.origin).read_bytes())
    return found.hexdigest()[:16]


def versions(implementations: Iterable[str]) -> dict[str, str]:
    """The versions of JAX, and names for the sources of the suite and of the implementations."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    found["suite"] = source_digest(PACKAGE)
    for implementation in sorted({*implementations} - {"jax"}):
        package = implementation.partition(":")[0].partition(".")[0]
        if own := source_digest(package):
            found[package] = own
    return found


ROOT = Path(__file__).parents[2]
"""The checkout, if the suite runs from one; otherwise the folder in which the wheel is installed."""

GIT_DEADLINE = 20.0


@dataclass(frozen=True)
class Suite:
    version: str
    commit: str | None = None
    """None outside of a checkout, and where git does not answer."""
    changed: bool | None = None
    """Whether files of the suite or of hostcb differ from the commit; None without a commit."""

    @property
    def words(self) -> str:
        if self.commit is None:
            return f"{self.version}, not from a checkout"
        return f"{self.version}, commit {self.commit}{' with uncommitted changes' if self.changed else ''}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@functools.cache
def this_suite() -> Suite:
    if not (ROOT / ".git").exists():
        return Suite(_version())
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return Suite(_version())
    changes = _git("status", "--porcelain", "--", "conformance", "hostcb")
    return Suite(_version(), commit, None if changes is None else bool(changes))


def installed(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def version_text() -> str:
    """What `--version` prints."""
    found = {name: installed(package) for name, package in (("JAX", "jax"), ("jaxlib", "jaxlib"))}
    lines = [f"conformance suite of hostcb {this_suite().words}"]
    lines += [f"{name} {version}" if version else f"{name} is not installed" for name, version in found.items()]
    return "\n".join([*lines, f"Python {platform.python_version()}"])


def _version() -> str:
    # A checkout runs without an installed hostcb, and importing hostcb would import JAX.
    source = ROOT / "hostcb" / "_version.py"
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return found[1] if found else installed("hostcb") or "unknown"


def _git(*arguments: str) -> str | None:
    """The output of a git command in the checkout; None if there is none."""
    # Inside of a hook, git's variables name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        ended = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=GIT_DEADLINE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
