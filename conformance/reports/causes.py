"""Groups of cells that the platform refuses for one cause: reports name each cause once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class WithCause(Protocol):
    @property
    def cause(self) -> str: ...


T = TypeVar("T", bound=WithCause)


def by_cause(results: Iterable[T]) -> Mapping[str, list[T]]:
    """The results that have a cause, grouped by it, the most frequent cause first."""
    found: dict[str, list[T]] = {}
    for result in results:
        if result.cause:
            found.setdefault(result.cause, []).append(result)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def in_words(cause: str, count: int, first: str) -> str:
    return f"{cause}: {first}" if count == 1 else f"{cause}: {count} cells, {first} for one"
