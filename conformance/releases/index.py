"""The releases of JAX that the user's package index has, and which Python can have which.

Nothing is downloaded: pip lists the versions for an interpreter, and names those that need another Python.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..spec.versions import version_key
from .pip import joined, last_error, no_connection, pip
from .pythons import Interpreter, interpreters_of
from .release import OLDEST, Release, ReleaseError, Skipped, newest_not_after

NO_VERSION = "0.0.0.dev0"
"""A version that no package has: pip then lists those there are, also yanked ones and those for other Pythons."""

QUESTION_DEADLINE = 120.0


@dataclass(frozen=True)
class Offer:
    """What the index has for one interpreter."""

    python: Interpreter
    jax: tuple[str, ...]
    jaxlib: tuple[str, ...]
    yanked: tuple[str, ...] = ()
    """Versions of jax that were withdrawn."""
    other_python: Mapping[str, str] = field(default_factory=dict)
    """Versions of jax that need another Python, with the Python that they need."""
    unreachable: str = ""
    """Pip's words if it cannot reach the index: then it sees only what `find-links` names."""

    def release(self, version: str) -> Release | None:
        """The release with this version of jax and the jaxlib that belongs to it, if this interpreter can have it."""
        series = version_key(version)[0][:2]
        jaxlib = newest_not_after(version, tuple(one for one in self.jaxlib if version_key(one)[0][:2] == series))
        return Release(version, jaxlib) if version in self.jax and jaxlib else None

    def has(self, release: Release) -> bool:
        return release.jax in self.jax and release.jaxlib in self.jaxlib


@dataclass(frozen=True)
class Index:
    """What the index has for all interpreters of this machine."""

    offers: tuple[Offer, ...]

    @property
    def unreachable(self) -> str:
        """That releases may be there which pip cannot see, with the reason; empty if it reaches the index."""
        return next((offer.unreachable for offer in self.offers if offer.unreachable), "")

    def released(self) -> tuple[tuple[Release, ...], tuple[Skipped, ...]]:
        """All releases that a Python here can have, the oldest first, and the others, each with the reason."""
        releases: list[Release] = []
        skipped: list[Skipped] = []
        too_old = []
        for version in self._versions():
            if version_key(version) < version_key(OLDEST):
                too_old.append(version)
                continue
            found = self._found(version)
            if found:
                releases.append(found)
            else:
                skipped.append(Skipped(version, self.why_not(version)))
        if too_old:
            first, last = too_old[0], too_old[-1]
            what = first if first == last else f"{first} to {last} ({len(too_old)} releases)"
            skipped.insert(0, Skipped(what, f"the suite runs on JAX {OLDEST} and newer"))
        return tuple(sorted(releases)), tuple(skipped)

    def release(self, jax: str, jaxlib: str | None = None) -> Release:
        """The release of this version; raises `ReleaseError` if there is none that can be installed here."""
        release = Release(jax, jaxlib or jax)
        if version_key(jax) < version_key(OLDEST):
            raise ReleaseError(f"JAX {jax} cannot be tried: the suite runs on JAX {OLDEST} and newer")
        if jaxlib is None:
            release = self._found(jax) or release
        self.python_for(release)
        return release

    def python_for(self, release: Release) -> Interpreter:
        """The interpreter for a release: the one that can have most releases, so that most releases share one."""
        for offer in sorted(self.offers, key=lambda offer: len(offer.jax), reverse=True):
            if offer.has(release):
                return offer.python
        if reason := self.why_not(release.jax):
            raise ReleaseError(f"JAX {release.jax} cannot be installed: {reason}")
        raise ReleaseError(
            f"JAX {release.jax} cannot be installed with jaxlib {release.jaxlib}: the index has no such one"
            f"{self._unseen}"
        )

    def why_not(self, version: str) -> str:
        """The reason if no Python here can have a version of jax; empty if one can."""
        if self._found(version):
            return ""
        if any(version in offer.yanked for offer in self.offers):
            return "it was yanked, that is, withdrawn"
        if offered := [offer for offer in self.offers if version in offer.jax]:
            return f"the index has no jaxlib for it and {_names(offered)}"
        needed = sorted({offer.other_python[version] for offer in self.offers if version in offer.other_python})
        if needed:
            return f"it needs Python {' or '.join(needed)}, and there is {_names(self.offers)}"
        known = [one for one in self._versions() if version_key(one) >= version_key(OLDEST)]
        between = f", which has {known[0]} to {known[-1]}" if known else ""
        return f"the index has no such release{between}{self._unseen}"

    @property
    def _unseen(self) -> str:
        return f"; {self.unreachable}" if self.unreachable else ""

    def _found(self, version: str) -> Release | None:
        """The release with the newest jaxlib that a Python here can have."""
        return max(filter(None, (offer.release(version) for offer in self.offers)), default=None)

    def _versions(self) -> list[str]:
        named = {version for offer in self.offers for version in (*offer.jax, *offer.yanked, *offer.other_python)}
        return sorted(named, key=version_key)


def _names(offers: Sequence[Offer]) -> str:
    return ", ".join(offer.python.name for offer in offers)


@functools.cache
def index(python: tuple[int, int] | None = None) -> Index:
    """The user's index, asked once for each Python of this machine, or only for one version of Python."""
    found = asked(interpreters_of(python))
    if found.unreachable:
        # A machine without a network may well have a folder of wheels, so this is no error.
        print(f"NOTE: {found.unreachable}: only releases of find-links are seen", file=sys.stderr, flush=True)
    return found


def asked(interpreters: Sequence[Interpreter]) -> Index:
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(_offer, interpreters))
    offers = tuple(offer for offer, _ in answers if offer.jax)
    if not offers:
        words = next((words for _, words in answers if words), "there is no Python to ask for")
        raise ReleaseError(f"the package index that pip uses tells of no release of JAX: {words}")
    return Index(offers)


def _offer(python: Interpreter) -> tuple[Offer, str]:
    """What the index has for an interpreter, and pip's words if that is nothing."""
    try:
        named = _question(python.path, "download", "--no-deps", "--dest", ".", f"jax=={NO_VERSION}")
        jax, words = versions_after("(from versions:", named), last_error(named)
        yanked = versions_after("yanked versions:", named)
        if jax and not yanked:
            # Older versions of pip name yanked ones among the others, in this list and not in the next one.
            listed = _listed(python.path, "jax")
            jax, yanked = listed, tuple(version for version in jax if version not in listed)
        if not jax:
            return Offer(python, (), ()), words if NO_VERSION not in words else "pip finds no version there"
        jaxlib = _listed(python.path, "jaxlib")
    except ReleaseError as error:
        # Another interpreter may have a pip that works.
        return Offer(python, (), ()), str(error)
    other = re.findall(r"(\S+) Requires-Python ([^;\n]+)", named)
    others = {version: needs.strip() for version, needs in other}
    return Offer(python, jax, jaxlib, yanked, others, no_connection(named, "the package index")), ""


def _listed(python: Path, package: str) -> tuple[str, ...]:
    return versions_after("Available versions:", _question(python, "index", "versions", package))


def _question(python: Path, *arguments: str) -> str:
    # By default pip tries an index that does not answer for a minute.
    return joined(pip(python, "--retries", "1", *arguments, deadline=QUESTION_DEADLINE))


def versions_after(words: str, written: str) -> tuple[str, ...]:
    """The versions in a line of pip's that begins with these words, the oldest first."""
    found = re.search(re.escape(words) + r"([^)\n]*)", written)
    named = (one.strip() for one in found[1].split(",")) if found else ()
    return tuple(sorted(filter(is_version, named), key=version_key))


def is_version(text: str) -> bool:
    try:
        version_key(text)
    except ValueError:
        return False
    return True
