"""Checks the wheels and the sdists of both distributions in a folder: `python ci/check_wheels.py DIST PLATFORM...`.

There must be a wheel of hostcb for each of these platforms, and no other. A wheel for `any` has no native extension;
one for another platform has an extension that fits it. The wheel of the conformance suite is for all platforms.
"""

from __future__ import annotations

import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

CHECKOUT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(CHECKOUT / "ci" / "packaging"))

import native  # noqa: E402

LIBRARY = "hostcb/_native/handover.so"
SOURCES = tuple(str(path.relative_to(CHECKOUT)) for path in native.sources())
VERSION = native.version()
LIBRARY_WHEEL, LIBRARY_SDIST = "hostcb-*.whl", "hostcb-*.tar.gz"
SUITE_WHEEL, SUITE_SDIST = "hostcb_conformance-*.whl", "hostcb_conformance-*.tar.gz"
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
    expect_at_the_top(names, {"hostcb", *STARTUP, information})
    for name in ("hostcb/py.typed", *SOURCES, f"{information}/METADATA"):
        expect(name in names, f"the wheel lacks {name}")
    for line in (f"Tag: py3-none-{platform}", f"Root-Is-Purelib: {str(library is None).lower()}"):
        expect(line in written, f"{path.name} says {written}, and should say {line!r}")
    if library is None:
        expect(platform == "any", f"{path.name} is for a platform, and has no native extension")
        return "without the native extension"
    expect(platform != "any", f"{path.name} is for all platforms, and has a native extension")
    return check_library(library, platform)


def check_suite(path: Path) -> str:
    """Return what was found in the wheel of the conformance suite, in words."""
    information = f"hostcb_conformance-{VERSION}.dist-info"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        written = archive.read(f"{information}/METADATA").decode().splitlines()
    expect(path.stem.endswith("-py3-none-any"), f"{path.name} must be for all platforms")
    expect_at_the_top(names, {"hostcb_conformance", information})
    folder = CHECKOUT / "conformance"
    sources = [str(file.relative_to(folder)) for ending in ("py", "toml") for file in folder.glob(f"*/**/*.{ending}")]
    missing = {f"hostcb_conformance/{name}" for name in ("__main__.py", *sources)} - {*names}
    expect(not missing, f"the wheel lacks {sorted(missing)}")
    needed = f"Requires-Dist: hostcb=={VERSION}"
    expect(needed in written, f"{path.name} should say {needed!r}")
    return f"{len(sources)} files, for hostcb {VERSION}"


def expect_at_the_top(names: Iterable[str], expected: set[str]) -> None:
    top = {name.partition("/")[0] for name in names}
    expect(top == expected, f"at the top of the wheel should be {sorted(expected)}, and there are {sorted(top)}")


def check_library(data: bytes, platform: str) -> str:
    """Check that a library is for the platform of a wheel's tag, and of this version; return what was found."""
    tag = re.fullmatch(r"(?:many)?linux_(?:(\d+)_(\d+)_)?(\w+)", platform)
    if tag is None:
        raise WrongWheelError(f"a wheel for {platform} may have no library")
    elf = ELFFile(io.BytesIO(data))
    machine = elf["e_machine"].removeprefix("EM_").lower()
    expect(machine == tag[3], f"the library in the wheel for {platform} is for the processor {machine}")
    glibc = max(glibc_versions(elf), default=(0,))
    if tag[1]:
        expect(glibc <= (int(tag[1]), int(tag[2])), f"the library in the wheel for {platform} needs glibc {glibc}")
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    # A name that begins with an underscore is the linker's.
    exported = {each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF" and not each.name.startswith("_")}
    source = "".join(path.read_text() for path in native.sources())
    meant = set(re.findall(r"^EXPORTED [^(=]*?(hostcb_\w+)(?:\(| =)", source, re.MULTILINE))
    expect(exported == meant, f"the library exports other names than the source says: {sorted(exported ^ meant)}")
    expect(native.mark().encode() + b"\0" in data, f"the library does not bear the mark {native.mark()!r}")
    needed = ".".join(map(str, glibc))
    return f"a library for {machine} and glibc {needed}, with {len(exported)} names, built for hostcb {native.mark()}"


def glibc_versions(elf: ELFFile) -> Iterator[tuple[int, ...]]:
    """The versions of glibc whose functions a library uses."""
    for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions():
        for version in versions:
            if version.name.startswith("GLIBC_"):
                yield tuple(map(int, version.name.removeprefix("GLIBC_").split(".")))


def check_sdists(folder: Path) -> Iterator[str]:
    """Give what was found in each sdist, in words."""
    library, suite = names_in(the_only(folder, LIBRARY_SDIST)), names_in(the_only(folder, SUITE_SDIST))
    both = ("LICENSE", "README.md", "pyproject.toml")
    startup = [f"ci/startup/{name}" for name in STARTUP]
    for name in (*both, *SOURCES, *startup, "ci/packaging/hook.py", "ci/packaging/native.py"):
        expect(name in library, f"the sdist of hostcb lacks {name}")
    for name in (*both, "__main__.py", "expectations/platforms/cpu.toml"):
        expect(name in suite, f"the sdist of the suite lacks {name}")
    compiled = sorted(name for name in library | suite if name.endswith((".so", ".o", ".dylib", ".pyc")))
    expect(not compiled, f"an sdist has compiled files: {compiled}")
    yield f"the sdist of hostcb: {len(SOURCES)} files in C, and nothing compiled"
    yield f"the sdist of the suite: {len(suite)} files"


def names_in(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def main() -> None:
    folder, platforms = Path(sys.argv[1]), sys.argv[2:]
    wheels = sorted(folder.glob(LIBRARY_WHEEL))
    there = sorted(platform_of(wheel) for wheel in wheels)
    expect(there == sorted(platforms), f"there must be wheels for {sorted(platforms)}, and there are for {there}")
    for wheel in wheels:
        print(f"{wheel.name}: {check_wheel(wheel)}")
    suite = the_only(folder, SUITE_WHEEL)
    print(f"{suite.name}: {check_suite(suite)}")
    print(*check_sdists(folder), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (WrongWheelError, ELFError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        sys.exit(2)
