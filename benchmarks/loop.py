"""The cost of one callback in a device loop, against JAX's own: `python -m benchmarks.loop`.

Each subject runs a 100-step `fori_loop` with one callback on a `float32` scalar a step.
"""

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
from benchmarks.subjects import SUBJECTS, Subject

STEPS = 100
# Ours, JAX's, and the share of JAX's time that ours may take.
COMPARISONS = (
    ("call", "jax io_callback(ordered=True)", 0.12),
    ("id_tap", "jax debug.callback", 0.03),
    ("pure_callback", "jax pure_callback", 0.12),
    ("io_callback", "jax io_callback", 0.12),
    ("io_callback(ordered=True)", "jax io_callback(ordered=True)", 0.12),
    ("debug.callback", "jax debug.callback", 0.12),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)
# Tap functions run concurrently with the device, and some still run when the device has ended.
DRAINED = 0.3


def looped(step: Subject, steps: int = STEPS) -> Callable[[], Any]:
    """Return a program with a loop of so many steps."""
    program = jax.jit(lambda start: jax.lax.fori_loop(0, steps, lambda _, carry: step(carry), start))
    return functools.partial(program, jnp.float32(1))


def run(rounds: int = 60) -> list[Row]:
    times = measure({name: looped(step) for name, step in SUBJECTS.items()}, rounds, STEPS)
    tap, debug = times["id_tap"]["drained"], times["jax debug.callback"]["drained"]
    drained = compared("loop", "id_tap, drained", "jax debug.callback", tap, debug, DRAINED)
    return [*rows_of("loop", times, COMPARISONS), drained]


if __name__ == "__main__":
    sys.exit(running.main({"loop": sys.modules[__name__]}, None, ["loop"]))
