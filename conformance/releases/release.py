"""A release of JAX, and why one cannot be had."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ..spec.errors import CommandError
from ..spec.versions import version_key

OLDEST = "0.4.31"
"""The oldest release on which the suite runs."""


class ReleaseError(CommandError):
    """A release that cannot be had: unknown, not installable, no index, a full disk. The text is one line for users."""


@functools.total_ordering
@dataclass(frozen=True)
class Release:
    """A version of jax with a version of jaxlib."""

    jax: str
    jaxlib: str
    """It may differ: some releases of jax came without one of jaxlib."""

    def __post_init__(self) -> None:
        for version in (self.jax, self.jaxlib):
            try:
                version_key(version)
            except ValueError as error:
                raise ReleaseError(str(error)) from error

    def __lt__(self, other: Release) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[object, ...]:
        return version_key(self.jax), version_key(self.jaxlib)

    @property
    def label(self) -> str:
        return self.jax if self.jax == self.jaxlib else f"{self.jax} with jaxlib {self.jaxlib}"


@dataclass(frozen=True)
class Skipped:
    """A release, or a range of releases, that cannot be tried."""

    release: str
    reason: str


def newest_not_after(version: str, versions: tuple[str, ...]) -> str | None:
    """The newest of these versions that is not newer than `version`: so jax chooses its jaxlib."""
    limit = version_key(version)
    return max((one for one in versions if version_key(one) <= limit), key=version_key, default=None)
