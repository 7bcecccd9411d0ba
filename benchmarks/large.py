"""The identity callback on large arrays, and how its cost grows: `python -m benchmarks.large` (D3).

`f32[1,1024,1024]` and `f32[8,1024,1024]`, 4 and 32 MiB. A plain copy on the device is measured beside: where the C
library maps memory of that size anew each time (glibc from 32 MiB on), it grows much faster than the data itself, and
so does everything that allocates. So costs are also given in plain copies of the same size. The exit status is 1 if a
callback of ours is slower than JAX's, or grows more than nine times for eight times the data, both in time and in
copies, where less than one copy counts as one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from benchmarks.measuring import measure, options, report
from benchmarks.subjects import COMPARISONS, SUBJECTS

SIZES = (1, 8)
MOST_GROWTH = 9.0
TARGETS = tuple((ours, theirs, 1.5 if ours == "dlpack_callback" else 1.05) for ours, theirs, _ in COMPARISONS)


def main(arguments: Sequence[str]) -> int:
    chosen = options(__doc__, "large", 15, arguments)
    met = True
    medians: dict[str, list[float]] = {}
    for size in SIZES:
        programs = {"plain copy": jax.jit(jnp.copy), **{name: jax.jit(step) for name, step in SUBJECTS.items()}}
        argument = jnp.zeros((size, 1024, 1024), jnp.float32)
        times = measure(programs, argument, chosen.rounds, steps=1, repeat=1)
        met &= report(times, f"f32[{size},1024,1024]", TARGETS, chosen.json)
        for name in programs:
            medians.setdefault(name, []).append(statistics.median(times[name]["device"]))
    ours = {ours for ours, _, _ in COMPARISONS}
    print(f"growth from {SIZES[0]} to {SIZES[-1]} (target {MOST_GROWTH} for ours)")
    for name, costs in medians.items():
        small, large = (cost / copy for cost, copy in zip(costs, medians["plain copy"], strict=True))
        in_time, in_copies = costs[1] / costs[0], SIZES[-1] * large / max(1.0, small)
        too_fast = name in ours and min(in_time, in_copies) > MOST_GROWTH
        met &= not too_fast
        verdict = " TOO FAST" if too_fast else ""
        print(f"  {name:<30} {in_time:6.1f}   in copies: {small:.2f} and {large:.2f}, so {in_copies:.1f}{verdict}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
