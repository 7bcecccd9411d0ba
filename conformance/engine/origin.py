"""What a run is made of, for its journal and its results: versions, options, and the part of a selection that it ran.

Two results are parts of one whole, and a run can go on, only if these agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..expectations.entries import Expectations
from ..planning.cells import Cell
from ..spec.sources import versions
from .shards import Shard, digest


@dataclass(frozen=True)
class Origin:
    """The whole selection, and which part of it a run has."""

    whole: Sequence[Cell]
    cells: Sequence[Cell]
    shard: Shard | None = None
    balance: str | None = None
    """A name for the seconds by which the shards were balanced."""

    def header(self, options: Mapping[str, Any], expectations: Expectations) -> dict[str, Any]:
        """The first line of the run's journal."""
        return {
            "selection": digest(cell.id for cell in self.cells),
            "shard": str(self.shard) if self.shard else None,
            "versions": versions(cell.implementation for cell in self.whole),
            "options": dict(options),
            "expectations": hashlib.sha256(repr(expectations).encode()).hexdigest()[:16],
        }

    def as_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the results."""
        fields: dict[str, Any] = {
            "versions": versions(cell.implementation for cell in self.whole),
            "options": dict(options),
        }
        if self.shard:
            fields["shard"] = {"number": self.shard.number, "of": self.shard.of}
            fields["selection"] = {
                "count": len(self.whole),
                "hash": digest(cell.id for cell in self.whole),
                "balance": self.balance,
                # All of them: who has only the other shards can say which cells are missing.
                "cells": {cell.id: " ".join(cell.promises) for cell in self.whole},
            }
        return fields
