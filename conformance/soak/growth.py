"""What a soak has found: anomalies, and what grows in its process by Theil and Sen's slope."""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from scipy.stats import theilslopes

from .programs import HostFunction
from .record import Record

BLOCKS = "allocated blocks of Python"
ALLOWED: Mapping[str, float] = {
    **{"resident memory, bytes": 32.0, "memory in use of the C library, bytes": 8.0, BLOCKS: 0.01},
    **{"objects of hostcb": 0.0001, "functions of dropped programs": 0.0, "live arrays of JAX": 0.0},
    **{"threads": 0.0, "descriptors": 0.0},
}
"""In an event, what is no leak. JAX's own caches grow a little with each program that it compiles."""
LEAST_SAMPLES = 8
"""With fewer samples nothing is said: the interval would have no end."""
WARM_UP = 1 / 3
"""The part of the samples at the begin that does not count: caches fill, and threads start."""
CONFIDENCE = 0.999
"""A run tests several series."""


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("fields", ctypes.c_size_t * 10),)


def sample(held: int) -> dict[str, float]:
    """Collect garbage, give free memory back, and look: the value of each series that this system has.

    `held` is the number of functions that programs hold.
    """
    for _ in range(2):
        gc.collect()
    objects = [type(each) for each in gc.get_objects()]
    values: dict[str, float] = {
        BLOCKS: sys.getallocatedblocks(),
        "live arrays of JAX": len(jax.live_arrays()),
        "objects of hostcb": len([each for each in objects if f"{each.__module__}.".startswith("hostcb.")]),
        "functions of dropped programs": max(0, objects.count(HostFunction) - held),
    }
    c_library: Any = ctypes.CDLL(None)
    if hasattr(c_library, "mallinfo2"):
        c_library.malloc_trim(0)
        c_library.mallinfo2.restype = _Mallinfo
        info = c_library.mallinfo2().fields
        # What is in use in mapped pieces, and in arenas.
        values["memory in use of the C library, bytes"] = info[4] + info[7]
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        values["resident memory, bytes"] = float(fields["VmRSS"].split()[0]) * 1024
        values["threads"] = float(fields["Threads"])
        values["descriptors"] = len(os.listdir("/proc/self/fd"))
    return values


def slope_of(places: Sequence[float], values: Sequence[float], first: float = 0.0) -> Any:
    """The slope of values over their places, from the `first` place on, with its bounds; None if there are too few."""
    samples = [*zip(places, values, strict=True)][math.ceil(len(values) * WARM_UP) :]
    # Of one place the last sample: for values and places that repeat SciPy's variance can be negative.
    counted = {place: value for place, value in samples if place >= first}
    if len(counted) < LEAST_SAMPLES:
        return None
    return theilslopes([*counted.values()], [*counted], alpha=CONFIDENCE)


@dataclass(frozen=True)
class Found:
    record: Record
    samples: Sequence[tuple[int, Mapping[str, float]]]
    """How many events there were, and the value of each series then."""
    warm_up: int
    seconds: float

    @functools.cached_property
    def slopes(self) -> dict[str, Any]:
        """Those of all series; empty if the samples are too few."""
        places = [float(events) for events, _ in self.samples]
        names = self.samples[0][1] if self.samples else ()
        found = {name: slope_of(places, [each[name] for _, each in self.samples], self.warm_up) for name in names}
        return {name: slope for name, slope in found.items() if slope is not None}

    @property
    def growing(self) -> list[str]:
        """The series that grow: even by the lowest slope that the samples allow."""
        return [name for name, slope in self.slopes.items() if slope.low_slope > ALLOWED[name]]

    @property
    def exit_code(self) -> int:
        return 1 if self.record.anomalies or self.growing else 0

    def __str__(self) -> str:
        record = self.record
        return (
            f"{record.events:,} events of {record.runs:,} runs in {self.seconds:.0f} s, "
            f"{record.events / self.seconds:,.0f} events/s; {record.failures} planted failures were reported"
        )

    def summary(self) -> str:
        growth = {
            name: f"{name} {slope:+.3g}, between {low:+.3g} and {high:+.3g} (allowed: {ALLOWED[name]:g})"
            for name, (slope, _, low, high) in self.slopes.items()
        }
        grows = "nothing grows" if growth else "it was too short to say whether anything grows"
        lines = [
            str(self),
            f"growth in an event, over {len(self.samples)} samples, with an interval of 99.9 %:",
            *(f"  {words}" for words in growth.values()),
            *(f"FAILED: {anomaly}" for anomaly in self.record.anomalies[:20]),
            *(f"FAILED: growth: {growth[name]}" for name in self.growing),
            "the soak failed" if self.exit_code else f"every callback was right, and {grows}",
        ]
        return "\n".join(lines)
