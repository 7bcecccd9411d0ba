"""The cost of a jitted function with one callback, against JAX's own: `python -m benchmarks.single`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.measuring import measure, rows_of
from benchmarks.rows import Row, compared
from benchmarks.subjects import SUBJECTS

# JAX dispatches its own pure one in C++ and its others in Python, which is most of their cost.
COMPARISONS = (
    ("pure_callback", "jax pure_callback", 0.15),
    ("id_tap", "jax debug.callback", 0.35),
    ("call", "jax io_callback(ordered=True)", 0.3),
    ("io_callback(ordered=True)", "jax io_callback(ordered=True)", 0.3),
    ("io_callback", "jax io_callback", 0.3),
    ("debug.callback", "jax debug.callback", 0.35),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)


# Python keeps frames in chunks of memory, and a call across the end of a chunk maps and unmaps one, in any program. So
# the quickest of some depths near the one that is meant counts.
DEPTHS = {"id_tap at a depth of 300": (284, 292, 300, 308, 316), "at a depth of 10": (6, 8, 10, 12, 14)}
CALLS = 64


def at_depth(depth: int, program: Callable[[], Any]) -> Any:
    """Call a program from so many frames deeper."""
    if depth:
        return at_depth(depth - 1, program)
    for _ in range(CALLS - 1):
        program()
    return program()


def deep(rounds: int) -> Row:
    """Compare a dispatch at the top of a deep stack with one of a flat stack."""
    program = functools.partial(jax.jit(SUBJECTS["id_tap"]), jnp.float32(1))
    programs = {str(depth): functools.partial(at_depth, depth, program) for each in DEPTHS.values() for depth in each}
    times = measure(programs, rounds, callbacks=CALLS)
    found = {
        name: [*map(min, zip(*(times[str(depth)]["device"] for depth in each), strict=True))]
        for name, each in DEPTHS.items()
    }
    (ours, ours_times), (theirs, theirs_times) = found.items()
    return compared("single", ours, theirs, ours_times, theirs_times, 1.3)


def run(rounds: int = 40) -> list[Row]:
    programs = {name: functools.partial(jax.jit(step), jnp.float32(1)) for name, step in SUBJECTS.items()}
    return [*rows_of("single", measure(programs, rounds, callbacks=1), COMPARISONS), deep(rounds)]


if __name__ == "__main__":
    sys.exit(running.main({"single": sys.modules[__name__]}, None, ["single"]))
