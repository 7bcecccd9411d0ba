"""Callbacks on large arrays, against JAX's own and a plain copy: `python -m benchmarks.large` (D3).

The arrays are `f32[1,1024,1024]` and `f32[8,1024,1024]`, 4 and 32 MiB. The plain copy is made on the device. If the C
library maps memory of that size anew each time (glibc from 32 MiB on), the time of a plain copy, and of any allocation,
grows much faster than the data. So the growth of our time is divided by this excess of the plain copy.
"""

from __future__ import annotations

import functools
import statistics
import sys

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.measuring import Times, measure
from benchmarks.rows import Row, compared
from benchmarks.subjects import SUBJECTS, Subject

COPY = "plain copy"
ONE = ", one element returned"
# If the program returns the tapped value, the device copies it for the result, with or without a callback.
COMPARISONS = (
    ("call", "jax pure_callback", 0.45),
    ("call", COPY, 1.6),
    ("id_tap", "jax debug.callback", 0.45),
    ("id_tap", COPY, 1.3),
    ("id_tap" + ONE, "jax debug.callback" + ONE, 0.45),
    ("id_tap" + ONE, COPY, 1.3),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)
GROWING = ("call", "id_tap")
MOST_GROWTH = 9.0


def run(rounds: int = 30, sizes: tuple[int, int] = (1, 8), width: int = 1024) -> list[Row]:
    names = dict.fromkeys(name for ours, theirs, _ in COMPARISONS for name in (ours, theirs))
    steps = {name: _step(name) for name in names}
    arguments = {size: jnp.zeros((size, width, width), jnp.float32) for size in sizes}
    # One series for both sizes, so that these are measured in turns too.
    times = measure(
        {
            _key(name, size): functools.partial(jax.jit(step), argument)
            for name, step in steps.items()
            for size, argument in arguments.items()
        },
        rounds,
        callbacks=1,
    )
    rows = []
    for ours, theirs, target in COMPARISONS:
        our_times, their_times = _times(times, ours, sizes[1]), _times(times, theirs, sizes[1])
        name, _, rest = ours.partition(",")
        what = f"{name} f32[{sizes[1]},{width},{width}]{',' if rest else ''}{rest}"
        rows.append(compared("large", what, theirs, our_times, their_times, target))
    return [*rows, *(_growth(times, name, sizes) for name in GROWING)]


def _step(name: str) -> Subject:
    if name == COPY:
        return jnp.copy
    whole = SUBJECTS[name.removesuffix(ONE)]
    return (lambda value: whole(value)[0, 0, 0]) if name.endswith(ONE) else whole


def _growth(times: Times, name: str, sizes: tuple[int, int]) -> Row:
    small, large = (_times(times, name, size) for size in sizes)
    small_copy, large_copy = (statistics.median(_times(times, COPY, size)) for size in sizes)
    factor = sizes[1] / sizes[0]
    excess = max(1.0, large_copy / small_copy / factor)
    what = f"{name}, {factor:g} x the data"
    return compared("large", what, "1 x the data", [each / excess for each in large], small, MOST_GROWTH)


def _key(name: str, size: int) -> str:
    return f"{name} {size}"


def _times(times: Times, name: str, size: int) -> list[float]:
    return times[_key(name, size)]["device"]


if __name__ == "__main__":
    sys.exit(running.main({"large": sys.modules[__name__]}, None, ["large"]))
