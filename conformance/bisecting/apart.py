"""Which of jax and jaxlib brought a change: each of the two with the other one's neighbour."""

from __future__ import annotations

from dataclasses import dataclass

from ..releases.release import Release
from .candidates import Candidate
from .evidence import Evidence, Relation
from .findings import Place

OLD, NEW, NEW_JAX, NEW_JAXLIB = range(4)
"""Places in the line of four: both releases, then each mixture."""


def mixtures(old: Release, new: Release) -> tuple[Candidate, ...]:
    """The two releases, the newer jax with the older jaxlib, the older jax with the newer jaxlib."""
    releases = (old, new, Release(new.jax, old.jaxlib), Release(old.jax, new.jaxlib))
    return tuple(Candidate(Place(f"jax {each.jax} with jaxlib {each.jaxlib}", each.label), each) for each in releases)


@dataclass(frozen=True)
class Mixed:
    """How a mixture behaves, or why it cannot be tried."""

    place: int
    relation: Relation | None
    reason: str = ""


def compared(evidence: Evidence) -> tuple[Mixed, Mixed]:
    """How each mixture behaves, beside the two releases."""
    found = []
    for place in (NEW_JAX, NEW_JAXLIB):
        reason = evidence.why_untestable(place)
        relation = evidence.relation(place, OLD, NEW) if reason is None else None
        found.append(Mixed(place, relation, reason or ""))
    return found[0], found[1]


def verdict(old: Release, new: Release, of_jax: Mixed, of_jaxlib: Mixed) -> list[str]:
    """The words for what the mixtures show."""
    lines = [_told(old, new, mixed) for mixed in (of_jax, of_jaxlib)]
    brought = _brought(of_jax, of_jaxlib)
    return [f"APART: {brought}.", *(f"  {line}" for line in lines)]


def _brought(of_jax: Mixed, of_jaxlib: Mixed) -> str:
    """What both mixtures show together; one of them alone shows less."""
    brings = {"jax": _brings_alone(of_jax), "jaxlib": _brings_alone(of_jaxlib)}
    alone = [name for name, known in brings.items() if known]
    if len(alone) == 2:
        return "either of jax and jaxlib brings the change"
    if None not in brings.values():
        return f"{alone[0]} brought the change" if alone else "only jax and jaxlib together bring the change"
    if alone:
        return f"{alone[0]} alone brings the change"
    for name, other in (("jax", "jaxlib"), ("jaxlib", "jax")):
        if brings[name] is False:
            return f"{other} brought the change, or only jax and jaxlib together do"
    return "jax and jaxlib cannot be told apart"


def _brings_alone(mixed: Mixed) -> bool | None:
    """Whether the newer one of the mixture has the change without the other one; None if that is not known."""
    return {Relation.NEW: True, Relation.OLD: False}.get(mixed.relation) if mixed.relation else None


def _told(old: Release, new: Release, mixed: Mixed) -> str:
    jax, jaxlib = (new.jax, old.jaxlib) if mixed.place == NEW_JAX else (old.jax, new.jaxlib)
    what = f"jax {jax} with jaxlib {jaxlib}"
    if mixed.relation is None:
        return f"{what} cannot be tried: {mixed.reason}"
    words = {
        Relation.OLD: f"does what {old.label} does",
        Relation.NEW: f"does what {new.label} does",
        Relation.OWN: "does something else",
        Relation.UNCLEAR: "cannot be told from either by so many runs",
    }
    return f"{what} {words[mixed.relation]}"
