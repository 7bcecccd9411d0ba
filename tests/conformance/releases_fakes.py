"""Releases that are no JAX: a Python for each that says which release it is, by an environment variable."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from conformance.cli import bisect
from conformance.releases.environments import Environment
from conformance.releases.release import Release, ReleaseError, Skipped

VERSIONS = ("0.5.3", "0.6.0", "0.6.1", "0.6.2", "0.7.0", "0.7.1", "0.7.2")


class FakeEnvironments:
    """Makes an environment by writing a shell script; what is in `broken` cannot be made."""

    def __init__(self, *folders: object) -> None:
        """Of no wheels, or of those that come first, as for `WheelEnvironments`."""

    broken: ClassVar[dict[str, str]] = {}
    folder = Path()

    def get(self, release: Release) -> Environment:
        if reason := self.broken.get(release.label):
            raise ReleaseError(reason)
        python = self.folder / f"python-{release.jax}-{release.jaxlib}"
        if not python.exists():
            variables = f"JAX={release.jax} JAXLIB={release.jaxlib}"
            python.write_text(f'#!/bin/sh\n{variables} exec {sys.executable} -I -S "$@"\n')
            python.chmod(0o755)
        return Environment(release, python)


@dataclass(frozen=True)
class FakeIndex:
    skipped: tuple[Skipped, ...] = ()
    unreachable: str = ""

    def released(self) -> tuple[tuple[Release, ...], tuple[Skipped, ...]]:
        return tuple(Release(version, version) for version in VERSIONS), self.skipped


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, skipped: tuple[Skipped, ...] = (), unreachable: str = ""
) -> None:
    """Let the command `bisect` find these releases in place of the real ones."""
    monkeypatch.setattr(bisect, "index", lambda: FakeIndex(skipped, unreachable))
    monkeypatch.setattr(bisect, "Environments", FakeEnvironments)
    monkeypatch.setattr(bisect, "WheelEnvironments", FakeEnvironments)
    monkeypatch.setattr(FakeEnvironments, "folder", folder)
    monkeypatch.setattr(FakeEnvironments, "broken", {})
