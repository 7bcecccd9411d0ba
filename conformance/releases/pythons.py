"""The Python interpreters of this machine in which the suite can run: this one, pyenv's, uv's, those on PATH."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..spec.versions import version_key
from .folders import home
from .release import ReleaseError

OLDEST_PYTHON = (3, 11)
"""The suite's own `requires-python`."""

ANSWER_DEADLINE = 20.0

_ASK = (
    "import sys, sysconfig; print(sys.implementation.name, *sys.version_info[:2],"
    " bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)


@dataclass(frozen=True)
class Interpreter:
    path: Path
    version: tuple[int, int]

    @property
    def name(self) -> str:
        return "Python {}.{}".format(*self.version)


@functools.cache
def pythons() -> tuple[Interpreter, ...]:
    """One interpreter for each version of Python, the oldest first."""
    found = {sys.version_info[:2]: Interpreter(Path(sys.executable), sys.version_info[:2])}
    for path in _candidates():
        # A shim of pyenv takes its time to answer.
        if _named_version(path) in found:
            continue
        interpreter = _asked(path)
        if interpreter and interpreter.version >= OLDEST_PYTHON:
            found.setdefault(interpreter.version, interpreter)
    return tuple(found[version] for version in sorted(found))


def interpreters_of(version: tuple[int, int] | None) -> tuple[Interpreter, ...]:
    """The interpreters, or the one of this version; raises `ReleaseError` if there is none."""
    found = tuple(one for one in pythons() if version in (None, one.version))
    if not found:
        there = ", ".join(one.name for one in pythons())
        raise ReleaseError("there is no Python {}.{} on this machine, only {}".format(*(version or ()), there))
    return found


def _candidates() -> Iterator[Path]:
    for folder in filter(None, (_pyenv(), _uv())):
        # The newest patch release of each version comes first.
        for version in sorted(folder.glob("*"), key=_patch, reverse=True):
            yield from (path for path in (version / "bin").glob("python3*") if _named_version(path))
    for name in os.environ.get("PATH", "").split(os.pathsep):
        if name:
            yield from sorted(path for path in Path(name).glob("python3*") if _named_version(path))


def _named_version(path: Path) -> tuple[int, int] | None:
    """The version in a name like `python3.12`, if the suite can run with it."""
    found = re.fullmatch(r"python3\.(\d+)", path.name)
    return (3, int(found[1])) if found and (3, int(found[1])) >= OLDEST_PYTHON else None


def _pyenv() -> Path | None:
    root = os.environ.get("PYENV_ROOT") or ((own := home()) and own / ".pyenv")
    return Path(root) / "versions" if root else None


def _uv() -> Path | None:
    if folder := os.environ.get("UV_PYTHON_INSTALL_DIR"):
        return Path(folder)
    data = os.environ.get("XDG_DATA_HOME") or ((own := home()) and own / ".local" / "share")
    return Path(data) / "uv" / "python" if data else None


def _patch(folder: Path) -> tuple[object, ...]:
    """Sorts folders like `3.11.7` and `cpython-3.11.7-linux-x86_64-gnu` by the version in their names."""
    found = re.search(r"\d+(\.\d+)+", folder.name)
    return version_key(found[0]) if found else ((), 0, 0)


def _asked(path: Path) -> Interpreter | None:
    """The interpreter at this path; None if it does not start or is another kind, for which JAX has no wheels."""
    try:
        # A shim of pyenv ends with an error if the version is not active.
        ended = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=ANSWER_DEADLINE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = ended.stdout.split()
    if ended.returncode or len(words) != 4 or words[0] != "cpython" or words[3] == "True":
        return None
    return Interpreter(path, (int(words[1]), int(words[2])))
