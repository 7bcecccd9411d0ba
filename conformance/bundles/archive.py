"""The archive of a bundle: a zip file whose every byte is either hashed in its manifest or the only one possible.

The zip format leaves much to its writer: times, attributes, comments, the level of compression, bytes between members.
All these are fixed here, and the manifest also has the hash of each member's compressed bytes. So a reader can write
the archive again from what it has read, and no byte can differ without notice.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..spec.errors import CommandError

MANIFEST = "manifest.json"
DIGEST = "manifest.sha256"
FORMAT = "hostcb conformance bundle"
VERSION = 1
"""The version of the archive: raised when an older reader would misunderstand it."""

LARGEST = 2**31
"""The greatest number of bytes of a bundle, and of its members together; zip itself allows about twice as many."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*")
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_NEEDS = 20
"""The version of the zip format that has deflate."""
_DATE = (1 << 5) | 1
"""The first day of 1980, the oldest that the format can name."""
_STORED, _DEFLATED = 0, 8


class BadBundleError(CommandError):
    """A file that is no bundle as `bundle` writes one; the text names the member."""


@dataclass(frozen=True)
class Bundle:
    members: Mapping[str, bytes]
    """The contents by name, without the manifest and its digest."""
    digest: str
    """The SHA-256 of the manifest, and so of everything."""


def read(path: Path) -> bytes:
    """The bytes of a file, or the beginning of one that is too large for a bundle."""
    found = bytearray()
    with path.open("rb") as file:
        while len(found) <= LARGEST and (block := file.read(2**20)):
            found += block
    return bytes(found)


def pack(members: Mapping[str, bytes]) -> tuple[bytes, str]:
    """The archive of these members, and its digest."""
    for name, content in members.items():
        if not _NAME.fullmatch(name):
            raise BadBundleError(f"{name!r} is no name for a member: letters, digits and ._+@- are")
        if len(content) > LARGEST:
            raise BadBundleError(f"{name} has {len(content)} bytes, and a bundle at most {LARGEST}")
    compressed = {name: _compress(content) for name, content in sorted(members.items())}
    listed = [_entry(name, members[name], shrunk) for name, shrunk in compressed.items()]
    manifest = json.dumps({"format": FORMAT, "version": VERSION, "members": listed}, indent=1).encode() + b"\n"
    digest = _sha256(manifest)
    head = {MANIFEST: manifest, DIGEST: _digest_line(digest)}
    # zlib may compress differently elsewhere, and the hashes of these two are not in the manifest: stored as they are.
    parts = [(name, content, content, 0) for name, content in head.items()]
    parts += [(name, members[name], shrunk, _DEFLATED) for name, shrunk in compressed.items()]
    return _zip(parts), digest


def unpack(data: bytes) -> Bundle:
    """The members of an archive; raises `BadBundleError` unless every byte is as `pack` wrote it."""
    if len(data) > LARGEST:
        raise BadBundleError(f"the file is larger than a bundle, which has at most {LARGEST} bytes")
    infos, contents = _read(data)
    for name in (MANIFEST, DIGEST):
        if name not in contents:
            raise BadBundleError(f"the archive has no member {name}, so it is no whole bundle")
    digest = _sha256(contents[MANIFEST])
    if contents[DIGEST] != _digest_line(digest):
        raise BadBundleError(f"{MANIFEST} was changed, or {DIGEST} was: the SHA-256 of the one is not in the other")
    entries = _entries(contents[MANIFEST])
    for name in sorted({*entries} - {*contents}):
        raise BadBundleError(f"{name} is in the manifest, and the archive has no such member")
    for name in sorted({*contents} - {*entries} - {MANIFEST, DIGEST}):
        raise BadBundleError(f"{name} is a member of the archive, and not in the manifest")
    parts = [(name, contents[name], contents[name], 0) for name in (MANIFEST, DIGEST)]
    for name, entry in entries.items():
        if _sha256(contents[name]) != entry["sha256"]:
            raise BadBundleError(f"{name} was changed: its SHA-256 is not the one in the manifest")
        start = infos[name].header_offset + _LOCAL.size + len(name)
        packed = data[start : start + infos[name].compress_size]
        if _sha256(packed) != entry["compressed_sha256"]:
            raise BadBundleError(f"{name} was packed again: the SHA-256 of its compressed bytes is not in the manifest")
        parts.append((name, contents[name], packed, _DEFLATED))
    _compare(data, _zip(parts), parts)
    return Bundle({name: contents[name] for name in entries}, digest)


def _entry(name: str, content: bytes, compressed: bytes) -> dict[str, Any]:
    return {
        "name": name,
        "bytes": len(content),
        "sha256": _sha256(content),
        "compressed_sha256": _sha256(compressed),
    }


def _read(data: bytes) -> tuple[dict[str, zipfile.ZipInfo], dict[str, bytes]]:
    """The members of any zip archive with the names of a bundle, and their contents."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    # The module raises many types of errors for damaged archives.
    except Exception as error:
        raise BadBundleError(f"it is no whole zip archive: {error}") from error
    infos = archive.infolist()
    for name, count in Counter(info.filename for info in infos).items():
        if not _NAME.fullmatch(name):
            raise BadBundleError(f"the member {name!r} has a name that no bundle has: its path may lead elsewhere")
        if count > 1:
            raise BadBundleError(f"{name} is in the archive {count} times")
        if next(info for info in infos if info.filename == name).compress_type not in (_STORED, _DEFLATED):
            raise BadBundleError(f"{name} is compressed by a method that no bundle has")
    if sum(info.file_size for info in infos) > LARGEST:
        raise BadBundleError(f"its members claim more than {LARGEST} bytes together")
    contents = {}
    for info in infos:
        try:
            with archive.open(info) as member:
                # `ZipFile.read` unpacks all that is there, however little is claimed.
                contents[info.filename] = member.read(info.file_size + 1)
        except Exception as error:
            raise BadBundleError(f"{info.filename} was changed: it cannot be read: {error}") from error
    return {info.filename: info for info in infos}, contents


def _entries(manifest: bytes) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(manifest)
        if found["format"] != FORMAT:
            raise BadBundleError(f"{MANIFEST} is of another format: {found['format']!r}")
        if found["version"] != VERSION:
            raise BadBundleError(
                f"{MANIFEST} has version {found['version']}, and this reader knows {VERSION}:"
                " verify it with the version of conformance that wrote it, or a newer one"
            )
        entries: dict[str, dict[str, Any]] = {str(one["name"]): dict(one) for one in found["members"]}
        wrong = [name for name, one in entries.items() if one != _typed(name, one)]
    except (ValueError, TypeError, KeyError) as error:
        raise BadBundleError(f"{MANIFEST} is no manifest: {type(error).__name__}: {error}") from error
    if wrong or len(entries) != len(found["members"]):
        raise BadBundleError(f"{MANIFEST} lists {(wrong or ['a member'])[0]} wrongly, or twice")
    return entries


def _typed(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    hashes = {key: str(entry[key]) for key in ("sha256", "compressed_sha256")}
    return {"name": name, "bytes": int(entry["bytes"]), **hashes}


def _compress(content: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def _digest_line(digest: str) -> bytes:
    """As `sha256sum` writes and checks it."""
    return f"{digest}  {MANIFEST}\n".encode()


def _zip(parts: list[tuple[str, bytes, bytes, int]]) -> bytes:
    """The zip file of these members: name, content, its bytes in the file, and the method that made these."""
    out, directory = bytearray(), bytearray()
    for name, content, packed, method in parts:
        path = name.encode()
        common = (method, 0, _DATE, zlib.crc32(content), len(packed), len(content), len(path))
        directory += _CENTRAL.pack(b"PK\1\2", _NEEDS, _NEEDS, 0, *common, 0, 0, 0, 0, 0, len(out)) + path
        out += _LOCAL.pack(b"PK\3\4", _NEEDS, 0, *common, 0) + path + packed
    ending = _END.pack(b"PK\5\6", 0, 0, len(parts), len(parts), len(directory), len(out), 0)
    return bytes(out + directory + ending)


def _compare(found: bytes, canonical: bytes, parts: list[tuple[str, bytes, bytes, int]]) -> None:
    """Raise unless the file is the one that `pack` writes of these members."""
    if found == canonical:
        return
    place = next(
        (n for n, pair in enumerate(zip(found, canonical, strict=False)) if pair[0] != pair[1]), len(canonical)
    )
    end, where = 0, "the archive's directory"
    for name, _, packed, _ in parts:
        end += _LOCAL.size + len(name) + len(packed)
        if place < end:
            where = f"the header of {name}"
            break
    raise BadBundleError(f"byte {place}, in {where}, is not as `bundle` writes it")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
