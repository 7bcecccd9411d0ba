"""The cells that run first: those that kill the most mutants, so that a broken change is seen in the first minute.

`python -m conformance mutants --rank` writes the file. This module does not import JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

FIRST_CELLS = Path(__file__).with_name("first_cells.txt")


def kills_in(text: str) -> dict[str, tuple[str, ...]]:
    """The mutants for which each cell was chosen, by callback/program/topology, the best cell first."""
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {words[0]: tuple(words[1:]) for words in lines if words}


@functools.cache
def places() -> Mapping[str, int]:
    return {cell: place for place, cell in enumerate(kills_in(FIRST_CELLS.read_text()))}


def place_of(cell_id: str) -> int | None:
    """The place of a cell; None for one that does not run first, such as those of JAX's own callbacks."""
    implementation, _, cell = cell_id.partition("/")
    return None if implementation == "jax" else places().get(cell)
