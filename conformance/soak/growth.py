"""What a process of a soak holds, series by series, and whether it grows: by Theil and Sen's slope, and Sen's interval.

The slope is over samples after the warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEMORY = "resident memory, bytes"
HEAP = "memory in use of the C library, bytes"
BLOCKS = "allocated blocks of Python"
THREADS = "threads"
PYTHON_THREADS = "threads of Python"
DESCRIPTORS = "descriptors"
ARRAYS = "live arrays of JAX"
OBJECTS = "objects of the library"
FUNCTIONS = "functions of dropped programs"

ALLOWED: Mapping[str, float] = {
    MEMORY: 32.0,
    HEAP: 8.0,
    BLOCKS: 0.01,
    THREADS: 0.0,
    PYTHON_THREADS: 0.0,
    DESCRIPTORS: 0.0,
    ARRAYS: 0.0,
    OBJECTS: 0.0001,
    FUNCTIONS: 0.0,
}
"""In an event. JAX's own caches grow a little with each program that it compiles."""

LEAST_SAMPLES = 8
"""With fewer samples nothing is said: the interval would have no end."""

WARM_UP = 1 / 3
"""The part of the samples at the begin that does not count: caches fill, and threads start."""

CONFIDENCE = 0.999
"""A run tests several series."""


@dataclass(frozen=True)
class Slope:
    slope: float
    low: float
    high: float
    samples: int

    def grows(self, allowed: float) -> bool:
        """Whether even the lowest slope that the samples allow is more than is allowed."""
        return self.low > allowed


def slope_of(places: Sequence[float], values: Sequence[float], first: float = 0.0) -> Slope | None:
    """The slope of values over their places, from the `first` place on; None if there are too few."""
    # It takes a second to import, and the other commands do not need it.
    from scipy.stats import theilslopes

    samples = [*zip(places, values, strict=True)][math.ceil(len(values) * WARM_UP) :]
    # Of one place the last sample: for values and places that repeat SciPy's variance can be negative.
    counted = {place: value for place, value in samples if place >= first}
    if len(counted) < LEAST_SAMPLES:
        return None
    found = theilslopes([*counted.values()], [*counted], alpha=CONFIDENCE)
    return Slope(float(found.slope), float(found.low_slope), float(found.high_slope), len(counted))
