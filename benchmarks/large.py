"""Callbacks on large arrays, against JAX's own and against copies: `python -m benchmarks.large` (D3).

From 256 KiB to 16 MiB there are two kinds of rows: one callback in a jitted function, with its dispatch, and one a step
of a device loop, without a dispatch. `np.copy` copies an array of the same size on the host. A call makes two copies:
the user function owns its operand, and the device owns the result.

The other arrays are `f32[1,1024,1024]` and `f32[8,1024,1024]`, 4 and 32 MiB. The plain copy is made on the device. If
the C library maps memory of that size anew each time (glibc from 32 MiB on), the time of a plain copy, and of any
allocation, grows much faster than the data. So the growth of our time is divided by this excess of the plain copy.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import running
from benchmarks.measuring import Times, measure
from benchmarks.rows import Row, compared
from benchmarks.subjects import SUBJECTS, Subject

COPY = "plain copy"
ONE = ", one element returned"
DONATED = ", its argument donated"
# If the program returns the tapped value, the device copies it for the result, with or without a callback; unless the
# result may have the memory of a donated argument.
COMPARISONS = (
    ("call", "jax pure_callback", 0.45),
    ("call", COPY, 1.6),
    ("id_tap", "jax debug.callback", 0.45),
    ("id_tap", COPY, 1.3),
    ("id_tap" + ONE, "jax debug.callback" + ONE, 0.45),
    ("id_tap" + ONE, COPY, 1.3),
    ("id_tap" + DONATED, "jax debug.callback" + DONATED, 0.45),
    ("buffer_callback", "jax buffer_callback", 1.05),
    ("dlpack_callback", "jax buffer_callback", 1.5),
)
GROWING = ("call", "id_tap")
MOST_GROWTH = 9.0

KIBIBYTES = (256, 1024, 4096, 16384)
HOST_COPY = "np.copy"
OF_EACH_SIZE = (
    ("call", "jax pure_callback", 0.5),
    ("id_tap", "jax debug.callback", 0.5),
    ("call", HOST_COPY, 1.6),
)
# A run of the loop moves so many KiB at least, so that its dispatch does not count.
IN_A_RUN = 32768
LEAST_STEPS = 4


def run(
    rounds: int = 20,
    sizes: tuple[int, int] = (1, 8),
    width: int = 1024,
    kibibytes: Sequence[int] = KIBIBYTES,
) -> list[Row]:
    rows = [row for each in kibibytes for row in [*_dispatched(each, rounds), *_in_a_loop(each, rounds)]]
    return rows + _against_plain_copies(rounds, sizes, width)


def _dispatched(kibibytes: int, rounds: int) -> list[Row]:
    """One callback in each jitted function."""
    argument = jnp.zeros((kibibytes, 256), jnp.float32)
    programs = {name: functools.partial(jax.jit(SUBJECTS[name]), argument) for name in _subjects()}
    copy: Callable[[], Any] = functools.partial(np.copy, np.array(argument))
    return _rows_of(f"{_named(kibibytes)} in one jit call", measure({**programs, HOST_COPY: copy}, rounds, callbacks=1))


def _in_a_loop(kibibytes: int, rounds: int) -> list[Row]:
    """One callback a step of a device loop."""
    start = jnp.zeros((kibibytes, 256), jnp.float32)
    steps = max(LEAST_STEPS, IN_A_RUN // kibibytes)
    programs = {name: _looped(name, start, steps) for name in _subjects()}
    on_host = np.array(start)

    def copy() -> None:
        for _ in range(steps):
            np.copy(on_host)

    return _rows_of(f"{_named(kibibytes)} in a loop", measure({**programs, HOST_COPY: copy}, rounds, callbacks=steps))


def _looped(name: str, start: Any, steps: int) -> Callable[[], Any]:
    def step(_: Any, carry: Any) -> Any:
        value, total = carry
        # Each step has an operand of its own, so the compiler can spare no step.
        value = value.at[0, 0].add(1)
        return value, total + SUBJECTS[name](value)[0, 0]

    @functools.partial(jax.jit, donate_argnums=0)
    def loop(value: Any) -> Any:
        return jax.lax.fori_loop(0, steps, step, (value, jnp.float32(0)))

    # The next run gets the memory of this one, so that no run copies its argument.
    value = jnp.copy(start)

    def run_once() -> Any:
        nonlocal value
        value, total = loop(value)
        return total

    return run_once


def _subjects() -> list[str]:
    return list(dict.fromkeys(name for ours, theirs, _ in OF_EACH_SIZE for name in (ours, theirs) if name in SUBJECTS))


def _named(kibibytes: int) -> str:
    return f"{kibibytes} KiB" if kibibytes < 1024 else f"{kibibytes // 1024} MiB"


def _rows_of(what: str, times: Times) -> list[Row]:
    return [
        compared("large", f"{ours} of {what}", theirs, times[ours]["device"], times[theirs]["device"], target)
        for ours, theirs, target in OF_EACH_SIZE
    ]


def _against_plain_copies(rounds: int, sizes: tuple[int, int], width: int) -> list[Row]:
    names = dict.fromkeys(name for ours, theirs, _ in COMPARISONS for name in (ours, theirs))
    arguments = {size: jnp.zeros((size, width, width), jnp.float32) for size in sizes}
    # One series for both sizes, so that these are measured in turns too.
    times = measure(
        {
            _key(name, size): _donating(name, argument) if name.endswith(DONATED) else _program(name, argument)
            for name in names
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


def _program(name: str, argument: Any) -> Callable[[], Any]:
    if name == COPY:
        return functools.partial(jax.jit(jnp.copy), argument)
    whole = SUBJECTS[name.removesuffix(ONE)]
    step: Subject = (lambda value: whole(value)[0, 0, 0]) if name.endswith(ONE) else whole
    return functools.partial(jax.jit(step), argument)


def _donating(name: str, argument: Any) -> Callable[[], Any]:
    program = jax.jit(SUBJECTS[name.removesuffix(DONATED)], donate_argnums=0)
    value = jnp.copy(argument)

    def run_once() -> Any:
        nonlocal value
        value = program(value)
        return value

    return run_once


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
