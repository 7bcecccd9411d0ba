"""Environments of releases, made by uv, or by virtualenv and pip where there is no uv.

uv finds interpreters, caches wheels and links them, so an environment takes it a second and no one is kept. Its user
configures it: an index, a proxy, offline. Nothing here adds to that, except for wheels of a folder.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..reports.visible import clipped
from ..spec.errors import CommandError
from ..spec.package import PACKAGE, install_here
from ..spec.versions import version_key
from ..worker.processes import OtherPython

OLDEST = "0.4.31"
"""The oldest release on which the suite runs."""

BESIDE_JAX = ("numpy", "absl-py")
"""What the suite and hostcb import, besides JAX."""

_VERSIONS = "from importlib.metadata import version; print(version('jax'), version('jaxlib'))"


class ReleaseError(CommandError):
    """A release or a commit that cannot be tried, and why."""


@dataclass(frozen=True)
class Release:
    """A version of jax, and perhaps of jaxlib: otherwise the installer chooses one, mostly of the same version."""

    jax: str
    jaxlib: str = ""

    @staticmethod
    def parse(words: str) -> Release:
        """`0.8.3`, or `0.8.3:0.8.2` with another jaxlib."""
        jax, _, jaxlib = words.partition(":")
        try:
            version_key(jaxlib or jax)
            old = version_key(jax) < version_key(OLDEST)
        except ValueError as error:
            raise ReleaseError(str(error)) from error
        if old:
            raise ReleaseError(f"JAX {jax} cannot be tried: the suite runs on JAX {OLDEST} and newer")
        return Release(jax, jaxlib)

    @property
    def order(self) -> tuple[object, ...]:
        return version_key(self.jax), version_key(self.jaxlib or self.jax)

    @property
    def label(self) -> str:
        return f"{self.jax} with jaxlib {self.jaxlib}" if self.jaxlib else self.jax


@dataclass(frozen=True)
class Environment(OtherPython):
    """An interpreter with JAX, for workers and for scripts."""

    jax: str
    checkout: bool = False
    """Whether there are packages of a commit in its path."""

    @staticmethod
    def of(python: Path, packages: Path, checkout: Path | None = None) -> Environment:
        """An environment that is there, with the packages `hostcb` and `jax` of a checkout, if one is given."""
        _link_packages(packages, checkout)
        asked = _run([str(python), "-c", _VERSIONS])
        if asked.returncode:
            raise ReleaseError(f"{python} has no JAX: {_complaint(asked)}")
        jax, jaxlib = asked.stdout.split()
        return Environment(python, jaxlib, (packages,), jax, checkout is not None)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        if not self.checkout:
            return super().environment(inherited)
        # The folders of the user, and the current one, may be other checkouts.
        kept = {name: value for name, value in inherited.items() if name != "PYTHONPATH"}
        # Of two commits, modules of one size and one second are the same to Python, if they were compiled.
        return super().environment(kept) | {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def of_script(self, script: Path) -> dict[str, str]:
        """The environment variables of a script: the user's, without modules of this Python."""
        variables = replace(self, path=(*self.path, script.resolve().parent)).environment(os.environ)
        if not self.checkout:
            variables = {name: variables[name] for name in variables.keys() - {"PYTHONPATH", "PYTHONSAFEPATH"}}
        # What a script prints before it crashes or hangs is part of its outcome.
        return variables | {"PYTHONUNBUFFERED": "1"}


@dataclass
class Installer:
    folder: Path
    """Where the environments are, while the command runs."""
    python: str = sys.executable
    """A version or a path, as uv and virtualenv take it."""
    find_links: Path | None = None
    """A folder with all wheels; then no index is asked."""
    _made: dict[Release, Environment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.python == f"{sys.version_info.major}.{sys.version_info.minor}":
            # A tool may not find the Python that runs it, or takes another one of that version.
            self.python = sys.executable

    def published(self, oldest: str = OLDEST, newest: str = "") -> Iterator[str]:
        """The versions of jax that this Python can install, the newest first."""
        bound = f"<={newest}" if newest else ""
        if not (uv := _uv()):
            yield from self._listed_by_pip(oldest, newest)
            return
        command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", self.python]

        def resolved(asked: str, *more: str) -> tuple[str, subprocess.CompletedProcess[str]]:
            # The resolver passes over what is withdrawn, and what has no wheel for this Python.
            ended = _run([*command, *self._links, *more, "-"], asked)
            return "".join(re.findall(r"^jax==([\w.]+)$", ended.stdout, re.MULTILINE)), ended

        for number in itertools.count():
            asked = f"jax>={oldest}" + (f",{bound}" if bound else "")
            version, ended = resolved(asked)
            if not version:
                no_such = "No solution found" in ended.stderr
                if number and no_such:
                    return
                beside = [(f"jax<{oldest}",), (f"jax>{newest or oldest}", "--resolution=lowest-direct")]
                near = " and ".join(filter(None, (resolved(*one)[0] for one in beside if no_such)))
                why = f"the nearest: {near}" if near else _complaint(ended)
                raise ReleaseError(f"no release of JAX can be installed for {asked!r}: {why}")
            yield version
            bound = f"<{version}"

    def between(self, first: str, last: str) -> list[Release]:
        """The releases that can be installed from one to another, with these two; an end may be open."""
        ends = [Release.parse(end) for end in (first, last) if end]
        # An end that cannot be installed says so itself. It may be written as 0.10, and be published as 0.10.0.
        found = {release.order: release for release in map(Release, self.published(first or OLDEST, last))}
        found |= {release.order: release for release in ends}
        return [found[order] for order in sorted(found)]

    def environment(self, release: Release) -> Environment:
        if release not in self._made:
            self._made[release] = self._make(release)
        return self._made[release]

    def remove(self, release: Release) -> None:
        """Free the disk of a release that has run."""
        self._made.pop(release, None)
        shutil.rmtree(self._place(release), ignore_errors=True)

    def _make(self, release: Release) -> Environment:
        place = self._place(release)
        python = place / "bin" / "python"
        wanted = [f"jax=={release.jax}", *([f"jaxlib=={release.jaxlib}"] if release.jaxlib else []), *BESIDE_JAX]
        if uv := _uv():
            make, install = [uv, "venv", "--quiet"], [uv, "pip", "install", "--quiet", "--python", str(python)]
        else:
            make = [sys.executable, "-m", "virtualenv", "--quiet"]
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        made = _run([*make, "--python", self.python, str(place)])
        if made.returncode:
            advice = "give --python the path of an interpreter"
            raise ReleaseError(f"Python {self.python} cannot be had; {advice}: {_complaint(made)}")
        ended = _run([*install, *self._links, *wanted])
        if ended.returncode:
            why = _other_python(ended, release) or _complaint(ended)
            raise ReleaseError(f"JAX {release.label} cannot be installed: {why}")
        return Environment.of(python, self.folder / "packages")

    def _place(self, release: Release) -> Path:
        return self.folder / release.label.replace(" ", "-")

    def _listed_by_pip(self, oldest: str, newest: str) -> list[str]:
        command = [sys.executable, "-m", "pip", "index", "versions", "jax", "--disable-pip-version-check"]
        asked = _run([*command, *self._links])
        if "No module named pip" in asked.stderr:
            raise _no_tool()
        found = re.search(r"^Available versions: (.+)$", asked.stdout, re.MULTILINE)
        if not found:
            raise ReleaseError(f"no release of JAX can be installed: {_complaint(asked)}")
        first, last = version_key(oldest), newest and version_key(newest)
        keys = {version: version_key(version) for version in found[1].split(", ")}
        return [version for version, key in keys.items() if first <= key and (not last or key <= last)]

    @property
    def _links(self) -> list[str]:
        return ["--no-index", "--find-links", str(self.find_links)] if self.find_links else []


def _link_packages(folder: Path, checkout: Path | None) -> None:
    """Make the folder in which workers find the suite and hostcb, and nothing of the environment of this process."""
    found = {PACKAGE: Path(__file__).parents[1]}
    specification = importlib.util.find_spec("hostcb")
    for location in (specification and specification.submodule_search_locations) or ():
        found["hostcb"] = Path(location)
    if checkout:
        own = {name: checkout / name for name in ("hostcb", "jax") if (checkout / name / "__init__.py").exists()}
        if not own:
            raise ReleaseError(f"{checkout} has no package hostcb and no package jax at its top")
        found |= own
    folder.mkdir(parents=True, exist_ok=True)
    for name, place in found.items():
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(place.resolve(), target_is_directory=True)


def _uv() -> str | None:
    """The uv of this environment, which need not be on PATH, or another one."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def check_tools() -> None:
    """Refuse at once what only the first environment would show."""
    if not (_uv() or importlib.util.find_spec("virtualenv")):
        raise _no_tool()


def _no_tool() -> ReleaseError:
    return ReleaseError(f"uv makes the environments of releases, and is missing: `{install_here('uv')}`")


def _run(command: Sequence[str], written: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=written, capture_output=True, text=True, errors="replace", check=False)


def _other_python(ended: subprocess.CompletedProcess[str], release: Release) -> str:
    """The advice if a tool says that the release is for another Python: uv in a sentence, pip in a list."""
    said = " ".join(f"{ended.stdout} {ended.stderr}".split())
    found = re.search(
        rf"\b{re.escape(release.jax)} (?:depends on Python|requires Python|Requires-Python) ?>=(\d\.\d+)", said
    )
    return f"it needs Python {found[1]} or newer: give --python {found[1]}" if found else ""


def _complaint(ended: subprocess.CompletedProcess[str]) -> str:
    """What a tool said went wrong: uv prints a chain of causes below its error, and pip the cause at the end."""
    lines = [" ".join(line.split()) for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
    errors = [line.partition(": ")[2] for line in lines if re.match(r"(error|cause|ERROR): ", line)]
    # The first of a chain say what was asked of whom, and the last one why that failed.
    told = dict.fromkeys((*errors[:2], *errors[-1:])) if errors else lines[-2:]
    return clipped(": ".join(told) or "nothing was said", 400)
