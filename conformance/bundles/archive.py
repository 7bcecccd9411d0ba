"""The file of a bundle: a zip archive with the SHA-256 of every other member, as `sha256sum` writes and checks them."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..reports.provenance import without_home
from ..reports.results import load_results
from ..spec.errors import CommandError

SUMS = "SHA256SUMS"

RESULTS, JOURNAL = "conformance-{}.json", "journal-{}.jsonl"
"""The names of the files of a run, which is called by its platform, and by its depth if nothing ran."""

LARGEST = 2**31
"""The greatest number of bytes of a bundle, and of its members together."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@-]*")


class BadBundleError(CommandError):
    """A file that is no bundle; the text names the member."""


@dataclass(frozen=True)
class Bundle:
    members: Mapping[str, bytes]
    """The contents by name, without the sums."""

    @property
    def sums(self) -> bytes:
        lines = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(self.members.items()))
        return "".join(lines).encode()

    @property
    def digest(self) -> str:
        """The SHA-256 of the sums, and so of all contents."""
        return hashlib.sha256(self.sums).hexdigest()

    def packed(self) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in ((SUMS, self.sums), *sorted(self.members.items())):
                # Without the time of day: the same results make the same file.
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return file.getvalue()


def bundle_of(folder: Path) -> Bundle:
    """The bundle of a results folder: the results and the journal of each platform."""
    files = [folder / name.format(run.name) for run in load_results(folder) for name in (RESULTS, JOURNAL)]
    texts = {file.name: file.read_text(encoding="utf-8", errors="replace") for file in files if file.exists()}
    return Bundle({name: without_home(text).encode() for name, text in texts.items()})


def unpack(file: Path | IO[bytes]) -> Bundle:
    """The members of an archive, all of them as the sums say; raises `BadBundleError`."""
    if isinstance(file, Path) and (file.stat().st_size > LARGEST or not file.is_file()):
        raise BadBundleError(f"it is no file of at most {LARGEST} bytes")
    contents = _contents(file)
    if (sums := contents.pop(SUMS, None)) is None:
        raise BadBundleError(f"the archive has no member {SUMS}, so it is no whole bundle")
    bundle = Bundle(contents)
    if sums != bundle.sums:
        differ = {*sums.decode(errors="replace").splitlines()} ^ {*bundle.sums.decode().splitlines()}
        name = min((line.partition("  ")[2] for line in differ), default=SUMS)
        raise BadBundleError(f"{name} was changed, added or removed: the archive and its {SUMS} do not agree")
    return bundle


def _contents(file: Path | IO[bytes]) -> dict[str, bytes]:
    """The members of any zip archive, read in memory: nothing is extracted."""
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(file) as archive:
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
    # The module raises many types of errors for damaged archives.
    except Exception as error:
        if isinstance(error, BadBundleError):
            raise
        raise BadBundleError(f"it is no whole zip archive: {type(error).__name__}: {error}") from error
    return contents
