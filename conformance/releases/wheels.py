"""Releases whose wheels are in a folder, such as nightly builds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..spec.versions import version_key
from .environments import Environment, Environments
from .pythons import OLDEST_PYTHON, pythons
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


class WheelEnvironments(Environments):
    """The cache, with wheels of a folder beside the index."""

    def __init__(self, wheels: Wheels, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._wheels = wheels
        # pip and uv look there too, in all processes that this one starts.
        os.environ["PIP_FIND_LINKS"] = str(wheels.folder)

    def get(self, release: Release) -> Environment:
        named = self._wheels.jaxlib.get(release.jaxlib)
        if release.jax not in self._wheels.jax or named is None:
            return super().get(release)
        here = [each.version for each in pythons() if None in named or each.version in named]
        if not here:
            wanted = ", ".join("{}.{}".format(*each) for each in sorted(filter(None, named)))
            raise ReleaseError(f"the wheel of jaxlib {release.jaxlib} is for Python {wanted}, which is not here")
        return Environments(self.folder, here[-1] if here[-1] >= OLDEST_PYTHON else None).get(release)


def _is_version(text: str) -> bool:
    try:
        version_key(text)
    except ValueError:
        return False
    return True
