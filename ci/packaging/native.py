"""Compile the hand-over of tapped values in C: for the build hook, and by hand with `python ci/packaging/native.py`.

What the environment says:

- `CC` names the C compiler, with options if need be.
- `HOSTCB_BUILD_NATIVE=0`: no library. `HOSTCB_BUILD_NATIVE=1`: also where its tests have never run.
- `HOSTCB_BUILD_PLATFORM` names the platform of the wheel, for a compiler that compiles for another one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "hostcb" / "_native"
NAME = "handover.so"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")

# The oldest headers that have all that the source uses, and the oldest jaxlib with them.
OLDEST_HEADERS = 3
OLDEST_JAXLIB = "0.10.2"


# CI has run the tests of the extension on these systems and processors. The order in which another processor shows
# memory to its threads, or another system its signals, has not been tried.
TESTED = (("Linux", "x86_64"),)


class NotBuiltError(Exception):
    """There is no library, for the reason that the text gives."""


def compiler() -> list[str]:
    """The command of the C compiler; empty if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named,) if named else (["cc"], ["gcc"], ["clang"]):
        if shutil.which(command[0]):
            return command
    return []


def lacks() -> str | None:
    """Why no library can be built here, whatever the headers; None if one can."""
    wanted = os.environ.get("HOSTCB_BUILD_NATIVE")
    if wanted not in (None, "0", "1"):
        raise ValueError(f"HOSTCB_BUILD_NATIVE must be 0 or 1, got {wanted!r}.")
    if wanted == "0":
        return "HOSTCB_BUILD_NATIVE=0 asks for that"
    if os.name != "posix":
        return f"it needs POSIX threads, and this is {sys.platform}"
    here = (platform.system(), platform.machine())
    if here not in TESTED and wanted is None:
        return f"its tests have never run on {' '.join(here)} (HOSTCB_BUILD_NATIVE=1 builds it all the same)"
    if not compiler():
        named = os.environ.get("CC")
        return f"CC names {named!r}, which is not there" if named else "there is no C compiler (set CC to name one)"
    return None


def headers() -> Path | None:
    """The folder of XLA's headers: in the jaxlib of the build, or of the environment that is installed into.

    pip runs a build with the environment's own Python, which does not see the environment's packages then.
    """
    spec = importlib.util.find_spec("jaxlib")
    places = (spec and spec.submodule_search_locations) or ()
    for place in (*places, os.path.join(sysconfig.get_path("platlib"), "jaxlib")):
        header = Path(place, "include", "xla", "ffi", "api", "c_api.h")
        if header.exists():
            found = re.search(r"#define XLA_FFI_API_MINOR (\d+)", header.read_text())
            if found and int(found[1]) >= OLDEST_HEADERS:
                return Path(place, "include")
    return None


def sources(folder: Path = FOLDER) -> tuple[Path, ...]:
    """All files in C that the library is made of, the headers too."""
    return tuple(sorted(folder.glob("*.[ch]")))


def version() -> str:
    """The version of hostcb."""
    return str(runpy.run_path(str(ROOT / "hostcb" / "_version.py"))["__version__"])


def mark(folder: Path = FOLDER) -> str:
    """The version of hostcb and the hash of the sources, as `hostcb._native.library` computes them."""
    source = b"".join(path.read_bytes() for path in sources(folder))
    return f"{version()} {hashlib.sha256(source).hexdigest()[:16]}"


def build(*flags: str, folder: Path = FOLDER) -> Path:
    """Compile the library beside its sources, and return its path.

    Raises:
        NotBuiltError: there is no C compiler, no header, or the compiler fails; or no library is wanted.
    """
    lacking, include, command = lacks(), headers(), compiler()
    if lacking is not None:
        raise NotBuiltError(lacking)
    if include is None:
        raise NotBuiltError(f"it needs the headers of jaxlib {OLDEST_JAXLIB} or newer, which is not installed here")
    # Another process may have loaded the old library, so a new file takes its place.
    new = folder / f"{NAME}.{os.getpid()}"
    defined = f'-DHOSTCB_BUILD="{mark(folder)}"'
    try:
        files = [str(path) for path in sources(folder) if path.suffix == ".c"]
        arguments = [*command, *FLAGS, *flags, f"-I{include}", defined, *files, "-o", str(new)]
        compiled = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise NotBuiltError(f"the C compiler {command[0]} failed: {compiled.stderr.strip()}")
        new.replace(folder / NAME)
    finally:
        new.unlink(missing_ok=True)
    return folder / NAME


def platform_tag() -> str:
    """The platform of a wheel with the library, such as `linux_x86_64`."""
    named = os.environ.get("HOSTCB_BUILD_PLATFORM")
    if named:
        return named
    from packaging import tags

    # Python's own name of the platform may be that of two processors, or of a macOS that this one never ran on. A
    # library that was not built for an old C library may not call itself `manylinux`.
    return next(tag for tag in tags.platform_tags() if not tag.startswith(("manylinux", "musllinux")))


if __name__ == "__main__":
    try:
        print(build(*sys.argv[1:]))
    except NotBuiltError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
