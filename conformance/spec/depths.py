"""How far a platform takes a cell: three depths, each of which shows more than the one before."""

from __future__ import annotations

from enum import Enum


class Depth(Enum):
    LOWER = "lower"
    """JAX lowers the program for the platform, on any machine; the suite reads the StableHLO."""
    COMPILE = "compile"
    """The vendor's compiler compiles the program ahead of time, without the hardware."""
    RUN = "run"
    """The hardware runs the program."""

    @property
    def place(self) -> int:
        """Its place among the depths; a deeper one has a higher place."""
        return [*Depth].index(self)
