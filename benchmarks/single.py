"""What a jitted function with one callback costs, beside JAX's own: `python -m benchmarks.single`.

The exit status is 1 if a ratio is above its target.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from benchmarks.measuring import measure, options, report
from benchmarks.subjects import COMPARISONS, SUBJECTS

# How much of JAX's time ours may take: no more than all of it, but for DLPack, which JAX does not have.
TARGETS = tuple((ours, theirs, 1.5 if ours == "dlpack_callback" else 1.0) for ours, theirs, _ in COMPARISONS)


def main(arguments: Sequence[str]) -> int:
    chosen = options(__doc__, "single", 40, arguments)
    programs = {name: jax.jit(step) for name, step in SUBJECTS.items()}
    times = measure(programs, jnp.float32(1), chosen.rounds, steps=1, repeat=50)
    return int(not report(times, "one callback in a jitted function", TARGETS, chosen.json))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
