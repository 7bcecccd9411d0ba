"""What a command hands to the workers of a Dask cluster with each piece of work, and the versions that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class OtherVersionsError(Exception):
    """A Dask worker has another JAX, or another version of the suite, than the client."""


@dataclass(frozen=True)
class Order:
    """What the pieces of one command have in common."""

    run: str
    """A name that no other command has; also that of the topic of its events."""
    versions: Mapping[str, str]
    implementations: tuple[str, ...]

    def check(self, address: str, found: Mapping[str, str]) -> None:
        """Refuse a Dask worker in which other versions were found."""
        if found != self.versions:
            raise OtherVersionsError(described(address, self.versions, found))


def described(address: str, expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """How the versions of a Dask worker differ, in words."""
    names = [name for name in dict.fromkeys((*expected, *found)) if expected.get(name) != found.get(name)]
    words = ", ".join(f"{name} is {found.get(name)} there and {expected.get(name)} here" for name in names)
    return f"the Dask worker {address} has other versions: {words}"
