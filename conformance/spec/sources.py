"""Names for the sources of packages: two machines that have the same name run the same suite."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path

from .package import PACKAGE


def suite_digest() -> str:
    """A name for the sources of the suite itself."""
    return source_digest(PACKAGE)


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
