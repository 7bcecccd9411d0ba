"""Releases whose wheels are in a folder, such as nightly builds."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..spec.versions import version_key
from .environments import Environment, Environments
from .making import make
from .pythons import OLDEST_PYTHON, Interpreter, pythons
from .release import Release, ReleaseError, newest_not_after

_WHEEL = re.compile(r"(?P<name>jax|jaxlib)-(?P<version>[^-]+)-(?:\d[^-]*-)?(?P<python>[^-]+)-[^-]+-[^-]+\.whl")


@dataclass(frozen=True)
class Wheels:
    folder: Path
    jax: frozenset[str]
    jaxlib: Mapping[str, frozenset[tuple[int, int] | None]]
    """For each version the Pythons that it is for; None for all."""

    @staticmethod
    def within(folder: Path) -> Wheels:
        if not folder.is_dir():
            raise ReleaseError(f"there is no folder {folder} with wheels")
        jax: set[str] = set()
        jaxlib: dict[str, set[tuple[int, int] | None]] = {}
        for path in folder.glob("*.whl"):
            found = _WHEEL.fullmatch(path.name)
            if not found or not _is_version(found["version"]):
                continue
            if found["name"] == "jax":
                jax.add(found["version"])
            else:
                python = re.fullmatch(r"cp(\d)(\d+)", found["python"])
                named = (int(python[1]), int(python[2])) if python else None
                jaxlib.setdefault(found["version"], set()).add(named)
        if not jax:
            raise ReleaseError(
                f"{folder} has no wheel of jax: expected files like jax-0.13.0.dev20261122-py3-none-any.whl"
            )
        return Wheels(folder.resolve(), frozenset(jax), {version: frozenset(them) for version, them in jaxlib.items()})

    def beside(self, releases: Sequence[Release]) -> tuple[Release, ...]:
        """These releases, and those of the folder: a wheel comes before what the index has of the same version."""
        libraries = (*self.jaxlib, *(release.jaxlib for release in releases))
        ours = [
            Release(version, jaxlib)
            for version in self.jax
            if (jaxlib := version if version in self.jaxlib else newest_not_after(version, libraries))
        ]
        return tuple(sorted([*ours, *(release for release in releases if release.jax not in self.jax)]))

    def of(self, release: Release) -> dict[str, str]:
        """The packages of a release, with their versions, that have a wheel in the folder."""
        versions = {"jax": (release.jax, self.jax), "jaxlib": (release.jaxlib, self.jaxlib)}
        return {name: version for name, (version, here) in versions.items() if version in here}

    def hashed(self, packages: Mapping[str, str]) -> str:
        """A hash of these packages' wheels: a new build may have the version of an older one, or of the index's."""
        digest = hashlib.sha256()
        for name, version in packages.items():
            for path in sorted(self.folder.glob(f"{name}-{version}-*.whl")):
                status = path.stat()
                digest.update(path.name.encode() + _content(path, status.st_mtime_ns, status.st_size))
        return digest.hexdigest()[:12]

    def mark(self, release: Release) -> str:
        """What tells a release with wheels of this folder from others of its version; empty if it has none here."""
        packages = self.of(release)
        return f"wheels {self.hashed(packages)}" if packages else ""


@functools.cache
def _content(path: Path, modified: int, size: int) -> bytes:
    """A hash of a wheel. A jaxlib is some 80 MB, so it is read once, as long as it stays the same."""
    del modified, size
    with path.open("rb") as wheel:
        return hashlib.file_digest(wheel, "sha256").digest()


class _LocalEnvironments(Environments):
    """The cache, for a release that has wheels in a folder."""

    def __init__(self, folder: Path, python: tuple[int, int] | None, wheels: Wheels, packages: Mapping[str, str]):
        super().__init__(folder, python)
        self.mark = f"-wheels-{wheels.hashed(packages)}"
        # Of two wheels of one version, pip takes the index's. So those of the folder are installed first, and stay.
        named = (f"{name}=={version}" for name, version in packages.items())
        self._first = ("--no-index", "--no-deps", "--find-links", str(wheels.folder), *named)

    def _install(self, release: Release, python: Interpreter, folder: Path) -> None:
        make(release, python, folder, self._first)


class WheelEnvironments(Environments):
    """The cache, with wheels of a folder beside the index."""

    def __init__(self, wheels: Wheels, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._wheels = wheels
        # They live as long as this object, for the same reason that it lives.
        self._local: dict[Release, Environments] = {}
        # pip and uv look there too, in all processes that this one starts.
        links = os.environ.get("PIP_FIND_LINKS", "").split()
        if str(wheels.folder) not in links:
            os.environ["PIP_FIND_LINKS"] = " ".join((*links, str(wheels.folder)))

    def get(self, release: Release) -> Environment:
        packages = self._wheels.of(release)
        if not packages:
            return super().get(release)
        if release not in self._local:
            python = self._python(release.jaxlib) if len(packages) == 2 else None
            self._local[release] = _LocalEnvironments(self.folder, python, self._wheels, packages)
        return self._local[release].get(release)

    def _python(self, jaxlib: str) -> tuple[int, int] | None:
        """The newest Python that a wheel of jaxlib is for."""
        named = self._wheels.jaxlib[jaxlib]
        here = [each.version for each in pythons() if None in named or each.version in named]
        if not here:
            wanted = ", ".join("{}.{}".format(*each) for each in sorted(filter(None, named)))
            raise ReleaseError(f"the wheel of jaxlib {jaxlib} is for Python {wanted}, which is not here")
        return here[-1] if here[-1] >= OLDEST_PYTHON else None


def _is_version(text: str) -> bool:
    try:
        version_key(text)
    except ValueError:
        return False
    return True
