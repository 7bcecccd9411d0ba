"""Comparisons of release versions."""

from __future__ import annotations

import operator
import re

HOSTCB_NEEDS = ">=0.10.2"
"""The releases of JAX on which hostcb runs; the suite runs on older ones, too, with other implementations."""

_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


_STAGES = {".dev": -4, "a": -3, "b": -2, "rc": -1, "": 0, ".post": 1}
"""The stages of a release in their order; "" is the release itself."""


class SpecifierError(ValueError):
    """A text that is not a comparison of versions."""


def version_key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Sorts versions, also pre-releases and nightly ones; raises `ValueError` for a text that is no version."""
    found = re.fullmatch(r"(\d+(?:\.\d+)*)(?:(\.dev|a|b|rc|\.post)(\d+))?(?:\+[\w.]+)?", version)
    if not found:
        raise ValueError(f"{version!r} is no version like 0.6.2")
    numbers = [int(number) for number in found[1].split(".")]
    while numbers[1:] and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), _STAGES[found[2] or ""], int(found[3] or 0)


def version_matches(version: str, specifier: str) -> bool:
    """Whether a release version satisfies comparisons like ">=0.10.2,<0.12"."""
    for part in filter(None, (part.strip() for part in specifier.split(","))):
        found = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*([\d.]+)", part)
        if not found:
            raise SpecifierError(f"{part!r} is no version comparison like '>=0.10.2'")
        if not _COMPARISONS[found[1]](_release(version), _release(found[2])):
            return False
    return True


def from_version(version: str) -> str:
    """The comparison that this version satisfies and no older release: ">=0.12.0.1", and ">=0.13.0" for a nightly."""
    found = re.match(r"\d+(\.\d+)*", version)
    return f">={found[0]}" if found else ""


def _release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:4]]
    return (*numbers, *(0,) * (4 - len(numbers)))
