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
    """A version of jax, and perhaps of jaxlib."""

    jax: str
    jaxlib: str = ""
    """If it is empty, the installer chooses: mostly that of the same version."""

    def __post_init__(self) -> None:
        for version in filter(None, (self.jax, self.jaxlib)):
            try:
                version_key(version)
            except ValueError as error:
                raise ReleaseError(str(error)) from error

    @staticmethod
    def parse(words: str) -> Release:
        """`0.6.2`, or `0.6.2:0.6.1` with another jaxlib."""
        jax, _, jaxlib = words.partition(":")
        release = Release(jax, jaxlib)
        if version_key(jax) < version_key(OLDEST):
            raise ReleaseError(f"JAX {jax} cannot be tried: the suite runs on JAX {OLDEST} and newer")
        return release

    def __lt__(self, other: Release) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[object, ...]:
        return version_key(self.jax), version_key(self.jaxlib or self.jax)

    @property
    def label(self) -> str:
        return f"{self.jax} with jaxlib {self.jaxlib}" if self.jaxlib else self.jax

    @property
    def requirements(self) -> list[str]:
        return [f"jax=={self.jax}", *([f"jaxlib=={self.jaxlib}"] if self.jaxlib else [])]


@dataclass(frozen=True)
class Skipped:
    """A release that cannot be tried."""

    release: str
    reason: str
