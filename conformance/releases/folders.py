"""The folders of the cache: environments, and the sources that they are given."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from pathlib import Path

from ..spec.package import PACKAGE
from .release import ReleaseError

_SUITE = Path(__file__).parents[1]


def home() -> Path | None:
    """The user's own folder; None without HOME and an entry for the user, as in a container with a bare user id."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def cache() -> Path:
    """The folder of the cache; raises `ReleaseError` if the user has no place for one."""
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "hostcb-conformance"
    if own := home():
        return own / ".cache" / "hostcb-conformance"
    # No folder in /tmp: anyone could have put an environment there.
    raise ReleaseError("you have no home folder for the cache: set HOME or XDG_CACHE_HOME, or pass --environments")


def sources() -> tuple[Path, ...]:
    """The folders in which workers of other environments find the suite and hostcb, and no package of this one."""
    beside = _SUITE.parent
    if _SUITE.name == PACKAGE and not (beside / "numpy").exists():
        return (beside,)
    # The suite is installed beside this environment's JAX, which the other one must not find.
    packages = {PACKAGE: _SUITE}
    specification = importlib.util.find_spec("hostcb")
    for found in (specification and specification.submodule_search_locations) or ():
        packages["hostcb"] = Path(found)
    mark = hashlib.sha256(repr(sorted(packages.items())).encode()).hexdigest()[:16]
    folder = cache() / "sources" / mark
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in packages.items():
        # Another process may be doing the same.
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(place, target_is_directory=True)
    return (folder,)
