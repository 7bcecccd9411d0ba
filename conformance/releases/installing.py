"""Environments of releases, made by uv, or by virtualenv and pip where there is no uv.

uv finds interpreters, caches wheels and links them, so an environment takes it a second and no one is kept. Its user
configures it: an index, a proxy, offline. Nothing here adds to that, except for wheels of a folder.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..spec.package import PACKAGE
from ..spec.versions import version_key
from ..worker.processes import OtherPython
from .release import OLDEST, Release, ReleaseError

BESIDE_JAX = ("numpy", "absl-py")
"""What the suite and hostcb import, besides JAX."""

DEADLINE = 1800.0
"""Seconds for one command: jaxlib may come over a slow connection."""

_VERSIONS = "from importlib.metadata import version; print(version('jax'), version('jaxlib'))"


@dataclass(frozen=True)
class Environment:
    """An interpreter with JAX."""

    python: Path
    jax: str
    jaxlib: str
    packages: Path
    """A folder that holds the suite and hostcb, and nothing else that is installed here."""

    @property
    def worker(self) -> OtherPython:
        return OtherPython(self.python, self.jaxlib, (self.packages,))


@dataclass
class Installer:
    folder: Path
    """Where the environments are, while the command runs."""
    python: str = sys.executable
    """A version or a path, as uv and virtualenv take it."""
    find_links: Path | None = None
    """A folder with all wheels; then no index is asked."""
    _made: dict[Release, Environment | ReleaseError] = field(default_factory=dict)

    def published(self, oldest: str = OLDEST, newest: str = "") -> Iterator[str]:
        """The versions of jax that this Python can install, the newest first."""
        uv = _uv()
        bound = f"<={newest}" if newest else ""
        if not uv:
            yield from _listed_by_pip(self._links, oldest, newest)
            return
        for number in itertools.count():
            # The resolver passes over what is withdrawn, and what has no wheel for this Python.
            command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", self.python]
            asked = f"jax>={oldest}" + (f",{bound}" if bound else "")
            resolved = _run([*command, *self._links, "-"], asked)
            found = re.search(r"^jax==([\w.]+)$", resolved.stdout, re.MULTILINE)
            if not found:
                if number and "No solution found" in resolved.stderr:
                    return
                raise ReleaseError(f"no release of JAX can be installed for {asked!r}: {_complaint(resolved)}")
            yield found[1]
            bound = f"<{found[1]}"

    def environment(self, release: Release) -> Environment:
        """The environment of a release; raises `ReleaseError` if there can be none, and again each time."""
        if release not in self._made:
            try:
                self._made[release] = self._make(release)
            except ReleaseError as error:
                self._made[release] = error
        made = self._made[release]
        if isinstance(made, ReleaseError):
            raise made
        return made

    def remove(self, release: Release) -> None:
        """Free the disk of a release that has run."""
        made = self._made.pop(release, None)
        if isinstance(made, Environment):
            shutil.rmtree(made.python.parents[1], ignore_errors=True)

    def _make(self, release: Release) -> Environment:
        place = self.folder / release.label.replace(" ", "-")
        python = place / "bin" / "python"
        for command in self._commands(place, python, [*release.requirements, *BESIDE_JAX]):
            ended = _run(command)
            if ended.returncode:
                raise ReleaseError(f"JAX {release.label} cannot be installed: {_complaint(ended)}")
        return environment_of(python, self.folder / "packages")

    def _commands(self, place: Path, python: Path, packages: Sequence[str]) -> list[list[str]]:
        if uv := _uv():
            install = [uv, "pip", "install", "--quiet", "--python", str(python)]
            return [[uv, "venv", "--quiet", "--python", self.python, str(place)], [*install, *self._links, *packages]]
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        if importlib.util.find_spec("virtualenv"):
            make = [sys.executable, "-m", "virtualenv", "--quiet", "--python", self.python]
        else:
            make = [shutil.which(self.python) or shutil.which(f"python{self.python}") or self.python, "-m", "venv"]
        return [[*make, str(place)], [*install, *self._links, *packages]]

    @property
    def _links(self) -> list[str]:
        return ["--no-index", "--find-links", str(self.find_links)] if self.find_links else []


def environment_of(python: Path, packages: Path, sources: Path | None = None) -> Environment:
    """An environment that is there, with the packages `hostcb` and `jax` of a checkout, if there are `sources`."""
    link_packages(packages, sources)
    asked = _run([str(python), "-c", _VERSIONS])
    if asked.returncode:
        raise ReleaseError(f"{python} has no JAX: {_complaint(asked)}")
    jax, jaxlib = asked.stdout.split()
    return Environment(python, jax, jaxlib, packages)


def link_packages(folder: Path, sources: Path | None = None) -> None:
    """Make the folder in which workers find the suite and hostcb, and nothing of the environment of this process."""
    found = {PACKAGE: Path(__file__).parents[1]}
    specification = importlib.util.find_spec("hostcb")
    for location in (specification and specification.submodule_search_locations) or ():
        found["hostcb"] = Path(location)
    if sources:
        own = {name: sources / name for name in ("hostcb", "jax") if (sources / name / "__init__.py").exists()}
        if not own:
            raise ReleaseError("this commit has no package hostcb and no package jax at its top")
        found |= own
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in found.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(place.resolve(), target_is_directory=True)


def _uv() -> str | None:
    """The uv of this environment, which need not be on PATH, or another one."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def _listed_by_pip(links: Sequence[str], oldest: str, newest: str) -> list[str]:
    asked = _run([sys.executable, "-m", "pip", "index", "versions", "jax", "--disable-pip-version-check", *links])
    found = re.search(r"^Available versions: (.+)$", asked.stdout, re.MULTILINE)
    if not found:
        raise ReleaseError(f"no release of JAX can be installed: {_complaint(asked)}")
    first, last = version_key(oldest), version_key(newest) if newest else None
    versions = [version.strip() for version in found[1].split(",")]
    return [one for one in versions if first <= version_key(one) and (last is None or version_key(one) <= last)]


def _run(command: Sequence[str], written: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=written, capture_output=True, text=True, errors="replace", check=False, timeout=DEADLINE
        )
    except OSError as error:
        raise ReleaseError(f"{command[0]} does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"`{' '.join(command[:3])} ...` did not end within {error.timeout:g} s") from error


def _complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """What a tool said last: uv tells the cause below its error, pip repeats it at the end."""
    lines = [" ".join(line.split()) for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"error:|cause:|ERROR:", line)] or lines
    return (": ".join(errors[-2:]) or "nothing was said").removeprefix("error: ")[:400]
