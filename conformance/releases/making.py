"""Makes an environment with one release of JAX: with uv if there is one, otherwise with venv and pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from .pip import DEADLINE, installing, joined, last_error, pip, says_disk_full
from .pythons import Interpreter
from .release import Release, ReleaseError
from .running import run

BESIDE_JAX = ("numpy", "absl-py")
"""What the suite and hostcb import, besides JAX."""

_TRIED = """
import importlib.metadata, jax, jax.numpy, jax.experimental
print(importlib.metadata.version("jax"), importlib.metadata.version("jaxlib"))
"""


class DiskFullError(ReleaseError):
    """There is no room for an environment."""


def make(release: Release, python: Interpreter, folder: Path, first: tuple[str, ...] = ()) -> None:
    """Make an environment in an empty folder; raises `ReleaseError` if that is not possible.

    `first` has the arguments of an installation that comes before that of the release.
    """
    packages = (f"jax=={release.jax}", f"jaxlib=={release.jaxlib}", *BESIDE_JAX)
    uv = shutil.which("uv")
    try:
        if not (uv and _made_by_uv(uv, python, folder, packages, first)):
            _make_by_pip(release, python, folder, packages, first)
        _try_out(release, folder)
    except subprocess.TimeoutExpired as error:
        command = " ".join(" ".join(map(str, error.cmd)).split()[:3])
        raise ReleaseError(
            f"JAX {release.label}: `{command} ...` did not end within {error.timeout:g} s: is the machine overloaded?"
        ) from error


def _made_by_uv(
    uv: str, python: Interpreter, folder: Path, packages: tuple[str, ...], first: tuple[str, ...] = ()
) -> bool:
    """Whether uv made it. If uv cannot, pip says why, since it is the user's pip that knows the index."""
    inside = folder / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", str(inside)]
    commands = (
        [uv, "venv", "--quiet", "--allow-existing", "--python", str(python.path), str(folder)],
        *([[*install, *first]] if first else ()),
        [*install, *index_for_uv(python.path), *packages],
    )
    for command in commands:
        try:
            ended = run(command, deadline=DEADLINE)
        except subprocess.TimeoutExpired:
            return False
        if says_disk_full(joined(ended)):
            raise DiskFullError("the disk is full")
        if ended.returncode:
            return False
    return True


def index_for_uv(python: Path) -> list[str]:
    """The user's configuration of pip as options of uv, which does not read it."""
    options: list[str] = []
    listed = joined(pip(python, "config", "list"))
    # Pip's environment variables win over its files, and later lines over earlier ones; only lists add up.
    for key in ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"):
        values = re.findall(rf"^(?:[\w.:-]+\.){key}='([^']*)'", listed, re.MULTILINE)
        if key == "no-index":
            options += ["--no-index"] if values and values[-1].lower() in ("1", "true", "yes", "on") else []
            continue
        chosen = values[-1:] if key == "index-url" else values
        option = {"trusted-host": "--allow-insecure-host"}.get(key, f"--{key}")
        for word in dict.fromkeys(re.split(r"\s+|\\n", " ".join(chosen).strip())):
            options += [option, word] if word else []
    # As pip does: the best version of all indexes.
    return [*options, "--index-strategy", "unsafe-best-match"]


def _make_by_pip(
    release: Release, python: Interpreter, folder: Path, packages: tuple[str, ...], first: tuple[str, ...] = ()
) -> None:
    # Without a pip inside: this one installs there.
    made = run([str(python.path), "-m", "venv", "--clear", "--without-pip", str(folder)], deadline=DEADLINE)
    if made.returncode:
        _refuse(release, python, joined(made))
    for each in filter(None, (first, packages)):
        installed = installing(python.path, folder, each)
        if installed.returncode:
            _refuse(release, python, joined(installed))


def _refuse(release: Release, python: Interpreter, written: str) -> None:
    if says_disk_full(written):
        raise DiskFullError("the disk is full")
    raise ReleaseError(f"JAX {release.label} cannot be installed for {python.name}: {last_error(written)}")


def _try_out(release: Release, folder: Path) -> None:
    """Import JAX there once: this also compiles it, and an old JAX may not work with what is newest beside it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["JAX_PLATFORMS"] = "cpu"
    tried = run([folder / "bin" / "python", "-c", _TRIED], environment=environment, deadline=DEADLINE)
    if tried.returncode:
        lines = tried.stderr.strip().splitlines() or ["it wrote nothing"]
        raise ReleaseError(f"JAX {release.label} is installed and cannot be imported: {lines[-1]}")
    if tried.stdout.split() != [release.jax, release.jaxlib]:
        raise ReleaseError(f"JAX {release.label} was asked for, and {' and '.join(tried.stdout.split())} came")
