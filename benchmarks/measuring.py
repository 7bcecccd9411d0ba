"""Measure programs in turns, so that other load of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks.rows import Row, compared
from benchmarks.subjects import barrier

# Microseconds a callback in each round, until the device has ended and until the callbacks have too.
Times = dict[str, dict[str, list[float]]]


# The least seconds of one measurement. A shorter one might fall between two interruptions by other processes, and all
# programs should have the same share of those.
SLICE = 4e-3


def measure(programs: Mapping[str, Callable[[], Any]], rounds: int, callbacks: int) -> Times:
    """Run each program in each round, often enough to fill a slice; `callbacks` is the number that one run makes.

    Every other round goes backwards, since the previous program leaves caches and threads in a state of its own.
    """
    repeats = {name: max(1, round(SLICE / _warm(program))) for name, program in programs.items()}
    times: Times = {name: {"device": [], "drained": []} for name in programs}
    names = list(programs)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            program, repeat = programs[name], repeats[name]
            begin = time.perf_counter()
            for _ in range(repeat):
                jax.block_until_ready(program())
            device = time.perf_counter()
            barrier()
            drained = time.perf_counter()
            per_callback = 1e6 / (callbacks * repeat)
            times[name]["device"].append((device - begin) * per_callback)
            times[name]["drained"].append((drained - begin) * per_callback)
    return times


def _warm(program: Callable[[], Any]) -> float:
    """Compile a program, warm it up, and return the seconds of its fastest run.

    The runs follow each other as in a slice: the first tap after a barrier wakes a thread, which takes longer than it.
    """
    fastest = float("inf")
    for _ in range(4):
        begin = time.perf_counter()
        jax.block_until_ready(program())
        fastest = min(fastest, time.perf_counter() - begin)
    barrier()
    return fastest


def rows_of(benchmark: str, times: Times, comparisons: Sequence[tuple[str, str, float | None]]) -> list[Row]:
    """Return a row for each comparison of device times: ours, theirs and the target."""
    return [
        compared(benchmark, ours, theirs, times[ours]["device"], times[theirs]["device"], target)
        for ours, theirs, target in comparisons
    ]
