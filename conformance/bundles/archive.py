"""The file of a bundle: a zip archive with a manifest, which has the SHA-256 of every other member."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..reports.machine import without_home
from ..reports.results import load_results
from ..spec.errors import CommandError

MANIFEST = "manifest.json"
DIGEST = "manifest.sha256"
FORMAT = "hostcb conformance bundle"
VERSION = 1
"""Raised when an older reader would misunderstand the archive."""

LARGEST = 2**31
"""The greatest number of bytes of a bundle, and of its members together."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*")


def results_name(run: str) -> str:
    """The name of the results of a run, which is called by its platform, and by its depth if nothing ran."""
    return f"conformance-{run}.json"


def journal_name(run: str) -> str:
    return f"journal-{run}.jsonl"


def members_of(folder: Path) -> dict[str, bytes]:
    """The members of the bundle of a results folder, by name: the results and the journal of each platform."""
    members = {}
    for run in load_results(folder):
        for file in (folder / results_name(run.name), folder / journal_name(run.name)):
            if file.exists():
                members[file.name] = without_home(file.read_text(encoding="utf-8", errors="replace")).encode()
    return members


class BadBundleError(CommandError):
    """A file that is no bundle; the text names the member."""


@dataclass(frozen=True)
class Bundle:
    members: Mapping[str, bytes]
    """The contents by name, without the manifest and its digest."""
    digest: str
    """The SHA-256 of the manifest, and so of all contents."""


def read(path: Path) -> bytes:
    """The bytes of a file, or the beginning of one that is too large for a bundle."""
    with path.open("rb") as file:
        found = bytearray()
        while len(found) <= LARGEST and (block := file.read(2**20)):
            found += block
    return bytes(found)


def pack(members: Mapping[str, bytes]) -> tuple[bytes, str]:
    """The archive of these members, and its digest."""
    listed = [{"name": name, "bytes": len(content), "sha256": _sha256(content)} for name, content in members.items()]
    listed.sort(key=lambda one: str(one["name"]))
    manifest = json.dumps({"format": FORMAT, "version": VERSION, "members": listed}, indent=1).encode() + b"\n"
    digest = _sha256(manifest)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ((MANIFEST, manifest), (DIGEST, _digest_line(digest)), *sorted(members.items())):
            # Without the time of day: the same results make the same file.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue(), digest


def unpack(data: bytes) -> Bundle:
    """The members of an archive, all of them as the manifest says; raises `BadBundleError`."""
    if len(data) > LARGEST:
        raise BadBundleError(f"the file is larger than a bundle, which has at most {LARGEST} bytes")
    contents = _contents(data)
    for name in (MANIFEST, DIGEST):
        if name not in contents:
            raise BadBundleError(f"the archive has no member {name}, so it is no whole bundle")
    manifest = contents.pop(MANIFEST)
    digest = _sha256(manifest)
    if contents.pop(DIGEST) != _digest_line(digest):
        raise BadBundleError(f"{MANIFEST} was changed, or {DIGEST} was: the SHA-256 of the one is not in the other")
    hashes = _hashes(manifest)
    for name in sorted(hashes.keys() - contents.keys()):
        raise BadBundleError(f"{name} is in the manifest, and the archive has no such member")
    for name, content in contents.items():
        if name not in hashes:
            raise BadBundleError(f"{name} is a member of the archive, and not in the manifest")
        if _sha256(content) != hashes[name]:
            raise BadBundleError(f"{name} was changed: its SHA-256 is not the one in the manifest")
    return Bundle(contents, digest)


def _contents(data: bytes) -> dict[str, bytes]:
    """The members of any zip archive, read in memory: nothing is extracted."""
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST:
                raise BadBundleError(f"its members claim more than {LARGEST} bytes together")
            for info in archive.infolist():
                if not _NAME.fullmatch(info.filename):
                    raise BadBundleError(f"the member {info.filename!r} has a name that no bundle has")
                if info.filename in contents:
                    raise BadBundleError(f"{info.filename} is in the archive twice")
                with archive.open(info) as member:
                    # `ZipFile.read` unpacks all that is there, however little is claimed.
                    contents[info.filename] = member.read(info.file_size + 1)
    except BadBundleError:
        raise
    # The module raises many types of errors for damaged archives.
    except Exception as error:
        raise BadBundleError(f"it is no whole zip archive: {type(error).__name__}: {error}") from error
    return contents


def _hashes(manifest: bytes) -> dict[str, str]:
    """The SHA-256 of each member, by its name."""
    try:
        found = json.loads(manifest)
        if found["format"] != FORMAT:
            raise BadBundleError(f"{MANIFEST} is of another format: {found['format']!r}")
        if found["version"] != VERSION:
            raise BadBundleError(
                f"{MANIFEST} has version {found['version']}, and this reader knows {VERSION}:"
                " verify it with the version of conformance that wrote it, or a newer one"
            )
        return {str(one["name"]): str(one["sha256"]) for one in found["members"]}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadBundleError(f"{MANIFEST} is no manifest: {type(error).__name__}: {error}") from error


def _digest_line(digest: str) -> bytes:
    """As `sha256sum` writes and checks it."""
    return f"{digest}  {MANIFEST}\n".encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
