"""The cost of a jitted function with one callback, against JAX's own: `python -m benchmarks.single`."""

from __future__ import annotations

import functools
import sys

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.measuring import measure, rows_of
from benchmarks.rows import Row
from benchmarks.subjects import SUBJECTS

# JAX dispatches its own pure one in C++ and its others in Python, which is most of their cost.
COMPARISONS = (
    ("pure_callback", "jax pure_callback", 0.15),
    ("id_tap", "jax debug.callback", 0.35),
    ("call", "jax io_callback(ordered=True)", 0.3),
    ("io_callback(ordered=True)", "jax io_callback(ordered=True)", 0.3),
    ("io_callback", "jax io_callback", 1.0),
    ("debug.callback", "jax debug.callback", 1.0),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)


def run(rounds: int = 40) -> list[Row]:
    programs = {name: functools.partial(jax.jit(step), jnp.float32(1)) for name, step in SUBJECTS.items()}
    return rows_of("single", measure(programs, rounds, callbacks=1), COMPARISONS)


if __name__ == "__main__":
    sys.exit(running.main({"single": sys.modules[__name__]}, None, ["single"]))
