"""The line of releases between two ends, with those that cannot be tried in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..releases.release import Release, ReleaseError, Skipped
from ..spec.versions import version_key
from .findings import Place


@dataclass(frozen=True)
class Candidate:
    place: Place
    release: Release | None
    """None if it cannot be tried."""
    reason: str = ""
    """Why it cannot."""


@dataclass(frozen=True)
class Line:
    candidates: tuple[Candidate, ...]
    swapped: bool = False
    """Whether the good end is the newer one."""
    named: tuple[int, ...] = ()
    """The places of the ends that the user has named."""
    notes: tuple[str, ...] = ()
    """What the user should know of the line before anything runs."""

    @property
    def places(self) -> list[Place]:
        return [candidate.place for candidate in self.candidates]


def line_of(
    releases: Sequence[Release],
    skipped: Sequence[Skipped],
    good: str | None,
    bad: str | None,
    jaxlib: str | None = None,
    unreachable: str = "",
) -> Line:
    """The releases from one end to the other, the oldest first; an end that is not given is the last there is.

    `unreachable` says why the index may have releases that are not among these.
    """
    # Pip also skips versions of a folder of wheels, for each Python that has no wheel there.
    usable = {release.jax for release in releases}
    left_out = [each for each in skipped if each.release not in usable]
    everything = sorted(
        [*(_candidate(release, jaxlib) for release in releases), *_skipped(left_out)],
        key=lambda candidate: version_key(candidate.place.name),
    )
    if not releases:
        raise ReleaseError("there is no release of JAX that can be tried here")
    notes: list[str] = []
    ends = [_place(everything, version, unreachable) for version in (good, bad) if version is not None]
    swapped = False
    if good is not None and bad is not None:
        if ends[0] == ends[1]:
            raise ReleaseError(f"--good and --bad are both {good}: two releases are needed")
        old, new = sorted(ends)
        swapped = old != ends[0]
        if swapped:
            notes.append(f"the good end {good} is newer than the bad end {bad}: the search is for what mended it")
    elif ends:
        # The other end is the newest release, or for the newest itself the oldest. What cannot be installed is none.
        newest = max(index for index, candidate in enumerate(everything) if candidate.release)
        old, new = (ends[0], len(everything) - 1) if ends[0] < newest else (0, ends[0])
    else:
        old, new = 0, len(everything) - 1
    chosen = everything[old : new + 1]
    if not any(candidate.release for candidate in chosen):
        raise ReleaseError(f"no release from {chosen[0].place.name} to {chosen[-1].place.name} can be tried here")
    return Line(tuple(chosen), swapped, tuple(end - old for end in ends), tuple(notes))


def marked(candidates: Sequence[Candidate], mark: Callable[[Release], str]) -> tuple[Candidate, ...]:
    """The candidates with the mark of their releases in the label: runs of other wheels are not taken for theirs."""
    return tuple(
        replace(each, place=Place(each.place.name, f"{each.place.label}, {words}"))
        if each.release and (words := mark(each.release))
        else each
        for each in candidates
    )


def _candidate(release: Release, jaxlib: str | None) -> Candidate:
    chosen = Release(release.jax, jaxlib) if jaxlib else release
    return Candidate(Place(release.jax, chosen.label), chosen)


def _skipped(skipped: Sequence[Skipped]) -> Iterator[Candidate]:
    """Single releases that cannot be tried; a range of those that are too old is no part of the line."""
    for each in skipped:
        try:
            version_key(each.release)
        except ValueError:
            continue
        yield Candidate(Place(each.release, each.release), None, each.reason)


def _place(candidates: Sequence[Candidate], version: str, unreachable: str) -> int:
    try:
        wanted = version_key(version)
    except ValueError as error:
        raise ReleaseError(f"{error}: an end is a release of JAX") from error
    for index, candidate in enumerate(candidates):
        if version_key(candidate.place.name) == wanted:
            if candidate.release is None:
                raise ReleaseError(f"JAX {version} cannot be an end: {candidate.reason}")
            return index
    first, last = candidates[0].place.name, candidates[-1].place.name
    unseen = f"; {unreachable}" if unreachable else ""
    raise ReleaseError(f"there is no release {version} of JAX here; there are {first} to {last}{unseen}")
