"""What one callback in a device loop costs, beside JAX's own: `python -m benchmarks.loop`.

Each subject runs a 100-step `fori_loop` with one callback on a `float32` scalar a step. The exit status is 1 if a ratio
is above its target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.measuring import measure, options, report
from benchmarks.subjects import COMPARISONS, SUBJECTS, Subject

STEPS = 100


def _loop(step: Subject) -> Callable[[Any], Any]:
    return jax.jit(lambda start: jax.lax.fori_loop(0, STEPS, lambda _, carry: step(carry), start))


def main(arguments: Sequence[str]) -> int:
    chosen = options(__doc__, "loop", 60, arguments)
    programs = {name: _loop(step) for name, step in SUBJECTS.items()}
    times = measure(programs, jnp.float32(1), chosen.rounds, STEPS, repeat=1)
    return int(not report(times, f"a loop of {STEPS} steps", COMPARISONS, chosen.json))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
