"""Names for the sources of packages: two machines that have the same name run the same suite."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

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
