"""The cost of one callback outside jit, against JAX's own: `python -m benchmarks.eager`.

JAX compiles a program for each of its own callbacks but debug callbacks, whose functions it calls at once. hostcb needs
no program. The function of a tap runs later, in another thread.
"""

from __future__ import annotations

import functools
import sys

import jax.numpy as jnp

from benchmarks import running
from benchmarks.measuring import measure, rows_of
from benchmarks.rows import Row
from benchmarks.subjects import SUBJECTS

COMPARISONS = (
    ("id_tap", "jax debug.callback", 0.7),
    ("debug.callback", "jax debug.callback", 1.0),
    ("call", "jax io_callback(ordered=True)", 0.5),
    ("io_callback(ordered=True)", "jax io_callback(ordered=True)", 0.5),
    ("io_callback", "jax io_callback", 0.5),
    ("pure_callback", "jax pure_callback", 0.8),
)


def run(rounds: int = 40) -> list[Row]:
    names = dict.fromkeys(name for ours, theirs, _ in COMPARISONS for name in (ours, theirs))
    programs = {name: functools.partial(SUBJECTS[name], jnp.float32(1)) for name in names}
    return rows_of("eager", measure(programs, rounds, callbacks=1), COMPARISONS)


if __name__ == "__main__":
    sys.exit(running.main({"eager": sys.modules[__name__]}, None, ["eager"]))
