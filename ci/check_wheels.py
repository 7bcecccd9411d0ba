"""Checks what is in wheels and the sdist of a folder: `python ci/check_wheels.py DIST PLATFORM...`.

There must be a wheel for each of these platforms, and no other. A wheel for `any` has no native extension; one for
another platform has an extension that fits it.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(CHECKOUT / "ci" / "packaging"))

import binaries  # noqa: E402
import native  # noqa: E402

LIBRARY = "hostcb/_native/handover.so"
SOURCES = tuple(str(path.relative_to(CHECKOUT)) for path in native.sources())
# What Python runs when it starts, for HOSTCB_INSTALL=1.
STARTUP = ("_hostcb_startup.py", "hostcb_startup.pth")


class WrongWheelError(Exception):
    """The wheel, the sdist or the installation is wrong."""


def expect(right: bool, message: str) -> None:
    if not right:
        raise WrongWheelError(message)


def the_only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    expect(len(found) == 1, f"{folder} must hold one {pattern}, and holds {[path.name for path in found]}")
    return found[0]


def platform_of(wheel: Path) -> str:
    """The platform of a wheel's tag, such as `any`."""
    return wheel.stem.rpartition("-")[2]


def check_wheel(path: Path) -> str:
    """Return what was found, in words."""
    platform = platform_of(path)
    expect(path.stem.endswith(f"-py3-none-{platform}"), f"{path.name} must have a tag that begins with py3-none-")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        library = archive.read(LIBRARY) if LIBRARY in names else None
        information = f"{'-'.join(path.name.split('-')[:2])}.dist-info"
        written = archive.read(f"{information}/WHEEL").decode().splitlines()
    top = {name.partition("/")[0] for name in names}
    expect(top == {"hostcb", "hostcb_conformance", *STARTUP, information}, f"at the top of the wheel are {sorted(top)}")
    sources = {str(file.relative_to(CHECKOUT / "conformance")) for file in (CHECKOUT / "conformance").rglob("*.py")}
    missing = {f"hostcb_conformance/{name}" for name in sources} - {*names}
    expect(not missing, f"the wheel lacks {sorted(missing)}")
    platforms = "hostcb_conformance/expectations/platforms/cpu.toml"
    for name in ("hostcb/py.typed", *SOURCES, platforms, f"{information}/METADATA"):
        expect(name in names, f"the wheel lacks {name}")
    for line in (f"Tag: py3-none-{platform}", f"Root-Is-Purelib: {str(library is None).lower()}"):
        expect(line in written, f"{path.name} says {written}, and should say {line!r}")
    if library is None:
        expect(platform == "any", f"{path.name} is for a platform, and has no native extension")
        return "without the native extension"
    expect(platform != "any", f"{path.name} is for all platforms, and has a native extension")
    return check_library(library, platform)


def check_library(data: bytes, platform: str) -> str:
    """Check that a library is for the platform of a wheel's tag, and of this version; return what was found."""
    found = binaries.read(data)
    tag = re.fullmatch(r"(?:many)?(linux|macosx)_(?:(\d+)_(\d+)_)?(\w+)", platform)
    if tag is None:
        raise WrongWheelError(f"no known platform: {platform}")
    for what, is_it, named in (("system", found.system, tag[1]), ("processor", found.machine, tag[4])):
        expect(is_it == named, f"the library in the wheel for {platform} is for the {what} {is_it}")
    oldest = ".".join(map(str, found.oldest))
    if tag[2]:
        expect(found.oldest <= (int(tag[2]), int(tag[3])), f"the library in the wheel for {platform} needs {oldest}")
    if found.system == "macosx":
        expect(found.signed, "the library has no signature, without which macOS loads nothing on arm64")
    # A name that begins with an underscore is the linker's.
    exported = {name for name in found.exported if not name.startswith("_")}
    source = "".join(path.read_text() for path in native.sources())
    meant = set(re.findall(r"^EXPORTED [^(=]*?(hostcb_\w+)(?:\(| =)", source, re.MULTILINE))
    expect(exported == meant, f"the library exports other names than the source says: {sorted(exported ^ meant)}")
    expect(native.mark().encode() + b"\0" in data, f"the library does not bear the mark {native.mark()!r}")
    versions = f"{'glibc' if found.system == 'linux' else 'macOS'} {oldest}"
    return f"a library for {found.machine} and {versions}, with {len(exported)} names, built for hostcb {native.mark()}"


def check_sdist(path: Path) -> str:
    """Return what was found, in words."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("LICENSE", "README.md", "pyproject.toml", "conformance/__main__.py", "ci/expectations/cpu.toml")
    startup = [f"ci/startup/{name}" for name in STARTUP]
    for name in (*needed, *SOURCES, *startup, "ci/packaging/hook.py", "ci/packaging/native.py"):
        expect(name in names, f"the sdist lacks {name}")
    compiled = sorted(name for name in names if name.endswith((".so", ".o", ".dylib", ".pyc")))
    expect(not compiled, f"the sdist has compiled files: {compiled}")
    return "the source in C, and nothing compiled"


def main() -> None:
    folder, *platforms = sys.argv[1:]
    wheels = sorted(Path(folder).glob("*.whl"))
    there = sorted(platform_of(wheel) for wheel in wheels)
    expect(there == sorted(platforms), f"there must be wheels for {sorted(platforms)}, and there are for {there}")
    for wheel in wheels:
        print(f"{wheel.name}: {check_wheel(wheel)}")
    sdist = the_only(Path(folder), "*.tar.gz")
    print(f"{sdist.name}: {check_sdist(sdist)}")


if __name__ == "__main__":
    try:
        main()
    except (WrongWheelError, binaries.UnreadableError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
