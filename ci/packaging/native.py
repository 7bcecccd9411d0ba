"""Compile the hand-over of tapped values in C: for the build hook, and by hand with `python ci/packaging/native.py`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "hostcb" / "_native" / "handover.c"
LIBRARY = SOURCE.with_suffix(".so")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


class NotBuiltError(Exception):
    """There is no library, for the reason that the text gives."""


def compiler() -> list[str]:
    """The command of the C compiler; empty if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named,) if named else (["cc"], ["gcc"], ["clang"]):
        if shutil.which(command[0]):
            return command
    return []


def headers() -> Path:
    """The folder of XLA's headers in the installed jaxlib."""
    spec = importlib.util.find_spec("jaxlib")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "include"
        if (folder / "xla" / "ffi" / "api" / "c_api.h").exists():
            return folder
    raise NotBuiltError("jaxlib, whose headers it needs, is not installed here")


def mark() -> str:
    """The version of hostcb and the hash of the source, as `hostcb._native.library` computes them."""
    version: dict[str, str] = {}
    exec((ROOT / "hostcb" / "_version.py").read_text(), version)
    return f"{version['__version__']} {hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"


def build(*flags: str) -> Path:
    """Compile the library beside its source, and return its path.

    Raises:
        NotBuiltError: there is no C compiler, no header, or the compiler fails.
    """
    command = compiler()
    if not command:
        raise NotBuiltError("there is no C compiler (set CC to name one)")
    if os.name != "posix":
        raise NotBuiltError(f"it needs POSIX threads, and this is {sys.platform}")
    # Another process may have loaded the old library, so a new file takes its place.
    new = LIBRARY.with_name(f"{LIBRARY.name}.{os.getpid()}")
    defined = f'-DHOSTCB_BUILD="{mark()}"'
    try:
        arguments = [*command, *FLAGS, *flags, f"-I{headers()}", defined, str(SOURCE), "-o", str(new)]
        compiled = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise NotBuiltError(f"the C compiler {command[0]} failed: {compiled.stderr.strip()}")
        new.replace(LIBRARY)
    finally:
        new.unlink(missing_ok=True)
    return LIBRARY


def platform_tag() -> str:
    """The platform of a wheel with the library, such as `linux_x86_64`."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    try:
        print(build(*sys.argv[1:]))
    except NotBuiltError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
