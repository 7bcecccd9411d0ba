"""The cache of environments: one for each release, complete or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .folders import cache
from .index import index
from .making import DiskFullError, make
from .pythons import Interpreter, interpreters_of
from .release import Release, ReleaseError
from .running import alive

_NAME = re.compile(r"jax-(.+)-jaxlib-(.+)-py(\d+)\.(\d+)((?:-wheels-[0-9a-f]+)?)")
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Environment:
    """An installed release."""

    release: Release
    python: Path
    """Its interpreter."""


@dataclass(frozen=True)
class Entry:
    """A folder of the cache."""

    folder: Path
    release: Release | None
    """None for what a killed process has left unfinished."""
    python: tuple[int, int]
    size: int
    """The bytes that its removal frees: uv shares files among environments."""


class Environments:
    """Environments in a folder. While this object lives, other processes do not prune those that it has given."""

    mark = ""
    """The end of the names of folders, which tells wheels of the user from the index's of the same version."""

    def __init__(self, folder: Path | None = None, python: tuple[int, int] | None = None) -> None:
        """The cache in a folder, by default the user's; with `python`, only for this version of Python."""
        self.folder = folder or cache() / "environments"
        self.python = python
        self._in_use: dict[Path, int] = {}
        weakref.finalize(self, _close, self._in_use)

    def has(self, release: Release) -> bool:
        """Whether the environment of a release is there already."""
        return self._present(release) is not None

    def get(self, release: Release) -> Environment:
        """The environment of a release, which is made if it is not there; raises `ReleaseError`."""
        try:
            place = self._present(release) or self._made(release)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(release) from error
            raise ReleaseError(f"the environment of JAX {release.label} cannot be made: {error}") from error
        except DiskFullError as error:
            raise self._full(release) from error
        return Environment(release, place / "bin" / "python")

    def entries(self) -> tuple[Entry, ...]:
        """What is in the cache, the oldest release first, then what is unfinished."""
        found = [entry for path in self._folders() if (entry := _entry(path))]
        complete = [(entry.release, entry.python, entry) for entry in found if entry.release]
        unfinished = [entry for entry in found if not entry.release]
        return (*(entry for _, _, entry in sorted(complete, key=lambda one: one[:2])), *unfinished)

    def prune(self, keep: Collection[Release] = ()) -> int:
        """Remove all environments but those of the releases to keep and those in use; return the freed bytes."""
        freed = 0
        for entry in self.entries():
            if entry.release in keep and entry.release:
                continue
            with _locked(entry.folder) as free:
                if free:
                    # First another name: an environment is complete, or not there.
                    doomed = entry.folder.with_name(f"{_UNFINISHED}{os.getpid()}-{entry.folder.name}")
                    try:
                        entry.folder.rename(doomed)
                    except FileNotFoundError:
                        # Another process has just pruned it.
                        continue
                    shutil.rmtree(doomed, ignore_errors=True)
                    freed += entry.size
        return freed

    def _folders(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.is_dir()] if self.folder.is_dir() else []

    def _present(self, release: Release) -> Path | None:
        for path in sorted(self._folders()):
            found = _NAME.fullmatch(path.name)
            if not found or (found[1], found[2], found[5]) != (release.jax, release.jaxlib, self.mark):
                continue
            if self.python and (int(found[3]), int(found[4])) != self.python:
                continue
            try:
                self._use(path)
            except FileNotFoundError:
                # Another process has just pruned it.
                continue
            # Its interpreter is a link to a Python that may be gone since.
            if (path / "bin" / "python").exists():
                return path
            self._leave(path)
            shutil.rmtree(path, ignore_errors=True)
        return None

    def _made(self, release: Release) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        python = self._interpreter(release)
        name = "jax-{}-jaxlib-{}-py{}.{}{}".format(release.jax, release.jaxlib, *python.version, self.mark)
        place = self.folder / name
        making = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{os.getpid()}-", dir=self.folder))
        try:
            self._install(release, python, making)
            self._use(making)
            try:
                making.rename(place)
            except OSError:
                # Another process was quicker.
                if not place.is_dir():
                    raise
                self._leave(making)
                self._use(place)
            else:
                self._in_use[place] = self._in_use.pop(making)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return place

    def _install(self, release: Release, python: Interpreter, folder: Path) -> None:
        make(release, python, folder)

    def _interpreter(self, release: Release) -> Interpreter:
        # Of one interpreter pip says itself what it cannot have.
        return interpreters_of(self.python)[0] if self.python else index().python_for(release)

    def _full(self, release: Release) -> ReleaseError:
        size = sum(entry.size for entry in self.entries())
        return ReleaseError(
            f"the disk is full, and JAX {release.label} was not installed; the cached environments in {self.folder}"
            f" have {size / 1e9:.1f} GB"
        )

    def _sweep(self) -> None:
        """Remove what killed processes have left."""
        for path in self._folders():
            owner = re.match(rf"{re.escape(_UNFINISHED)}(\d+)-", path.name)
            if owner and not alive(int(owner[1])):
                shutil.rmtree(path, ignore_errors=True)

    def _use(self, path: Path) -> None:
        if path not in self._in_use:
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._in_use[path] = descriptor

    def _leave(self, path: Path) -> None:
        os.close(self._in_use.pop(path))


def _close(descriptors: dict[Path, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder against use, if no process uses it; says whether that was so."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def _entry(path: Path) -> Entry | None:
    found = _NAME.fullmatch(path.name)
    if found:
        try:
            release = Release(found[1], found[2])
        except ReleaseError:
            return None
        return Entry(path, release, (int(found[3]), int(found[4])), size_of(path))
    owner = re.match(rf"{re.escape(_UNFINISHED)}(\d+)-", path.name)
    if owner and not alive(int(owner[1])):
        return Entry(path, None, (0, 0), size_of(path))
    return None


def size_of(folder: Path) -> int:
    """The bytes that only this folder holds."""
    size = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(root, name))
                if status.st_nlink == 1:
                    size += _held(status)
    return size


def _held(status: os.stat_result) -> int:
    return status.st_blocks * 512
