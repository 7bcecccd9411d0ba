"""The reviewed list of mutants that change nothing that a promise is about: `ci/mutation/equivalent.toml`.

Each has one line that says why. An entry for a mutant that the source does not have any more is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from .overlay import PROJECT

FILE = PROJECT / "ci" / "mutation" / "equivalent.toml"


class EquivalentsError(Exception):
    """A list that cannot be used as it stands."""


def load(path: Path, known: Collection[str]) -> dict[str, str]:
    """The reasons, by the id of the mutant."""
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text()).get("equivalent", {})
    except tomllib.TOMLDecodeError as error:
        raise EquivalentsError(f"{path} is not TOML: {error}") from error
    for mutant, why in entries.items():
        if not isinstance(why, str) or not why.strip() or "\n" in why.strip():
            raise EquivalentsError(f"{path}: {mutant!r} needs one line that says why nothing changes")
        if mutant not in known:
            raise EquivalentsError(f"{path}: the source has no mutant {mutant!r} any more; remove the entry")
    return entries
