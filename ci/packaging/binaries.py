"""What a compiled library says of itself: its platform, and its names. Reads ELF and Mach-O of 64 bits, no more."""

from __future__ import annotations

import dataclasses
import struct

_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
_MACH_O_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_MACOS = 1


@dataclasses.dataclass(frozen=True)
class Binary:
    system: str
    machine: str
    exported: frozenset[str]
    # On Linux the newest glibc that it needs, on macOS the oldest system that it is for.
    oldest: tuple[int, ...]
    # macOS on arm64 loads nothing without a signature, even one by nobody.
    signed: bool = False


class UnreadableError(Exception):
    """This is no library that can be read here."""


def read(data: bytes) -> Binary:
    if data[:6] == b"\x7fELF\x02\x01":
        return _elf(data)
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return _mach_o(data)
    raise UnreadableError(f"neither ELF nor Mach-O of 64 bits: it begins with {data[:6]!r}")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _elf(data: bytes) -> Binary:
    (machine,) = struct.unpack_from("<H", data, 18)
    (begin,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    # Each: type, place in the file, size, the section of its text, and how many entries it has.
    sections = [struct.unpack_from("<4xI16xQQII", data, begin + n * size) for n in range(count)]
    exported: set[str] = set()
    needed: list[tuple[int, ...]] = [(0,)]
    for kind, place, length, link, entries in sections:
        if kind not in (11, 0x6FFFFFFE):
            continue
        names = sections[link][1]
        if kind == 11:  # .dynsym
            for at in range(place, place + length, 24):
                name, information, _, section = struct.unpack_from("<IBBH", data, at)
                if section and information >> 4:
                    exported.add(_text(data, names + name))
        else:  # .gnu.version_r, a file each, with a list of its versions
            for _ in range(entries):
                versions, at, following = struct.unpack_from("<2xH4xII", data, place)
                for _ in range(versions):
                    name, after = struct.unpack_from("<8xII", data, place + at)
                    version = _text(data, names + name)
                    if version.startswith("GLIBC_"):
                        needed.append(_version(version.removeprefix("GLIBC_")))
                    at += after
                place += following
    return Binary("linux", _ELF_MACHINES.get(machine, f"number {machine}"), frozenset(exported), max(needed))


def _mach_o(data: bytes) -> Binary:
    machine, commands = struct.unpack_from("<4xI8xI", data)
    exported: set[str] = set()
    oldest: tuple[int, ...] = (0,)
    system, signed = "another system than macOS", False
    at = 32
    for _ in range(commands):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == 0x02:  # LC_SYMTAB
            place, count, names = struct.unpack_from("<8xIII", data, at)
            for n in range(count):
                name, flags, section = struct.unpack_from("<IBB", data, place + 16 * n)
                # External, not private to the library, and defined in a section. C's names get an underscore.
                if flags & 0x11 == 0x01 and section:
                    exported.add(_text(data, names + name).removeprefix("_"))
        elif kind == 0x32:  # LC_BUILD_VERSION
            platform, version = struct.unpack_from("<8xII", data, at)
            system = "macosx" if platform == _MACOS else system
            oldest = (version >> 16, version >> 8 & 0xFF)
        elif kind == 0x1D:  # LC_CODE_SIGNATURE
            signed = True
        at += size
    return Binary(system, _MACH_O_MACHINES.get(machine, f"number {machine}"), frozenset(exported), oldest, signed)
