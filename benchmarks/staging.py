"""The cost of a program before it runs: `python -m benchmarks.staging`.

It compares 500 taps with 500 of JAX's debug callbacks, phase by phase and in total, and one callback with one of JAX's
own. Each round makes a new function, so that no cache has it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.rows import Row, compared
from benchmarks.subjects import SUBJECTS, Subject

COUNT = 500
PHASES = ("trace", "lower", "compile")
ALL = "trace, lower and compile"
TARGET = 1.0
# Of these XLA's compiler and MLIR's context take two thirds, hostcb's or JAX's.
ONE_CALLBACK = (
    ("id_tap", "jax debug.callback", 0.8),
    ("call", "jax io_callback(ordered=True)", 0.8),
    ("pure_callback", "jax pure_callback", 0.8),
)


def _function(step: Subject, count: int) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        # No computation between callbacks: compiling a kernel for each would take most of the time.
        for _ in range(count):
            value = step(value)
        return value

    return function


def staged(step: Subject, count: int) -> dict[str, float]:
    """Measure the milliseconds of each phase."""
    argument = jnp.float32(1)
    moments = [time.perf_counter()]
    traced = jax.jit(_function(step, count)).trace(argument)
    moments.append(time.perf_counter())
    lowered = traced.lower()
    moments.append(time.perf_counter())
    lowered.compile()
    moments.append(time.perf_counter())
    took = {phase: 1e3 * (end - begin) for phase, begin, end in zip(PHASES, moments[:-1], moments[1:], strict=True)}
    return took | {ALL: sum(took.values())}


def run(rounds: int = 7, count: int = COUNT) -> list[Row]:
    names = ("id_tap", "jax debug.callback")
    ours, theirs = _measured(names, rounds, count)
    many = [
        compared("staging", f"{phase} {count} taps", f"{count} {names[1]}s", ours[phase], theirs[phase], TARGET, "ms")
        for phase in (*PHASES, ALL)
    ]
    return many + [_of_one(*each, rounds=3 * rounds) for each in ONE_CALLBACK]


def _of_one(name: str, of_jax: str, target: float, rounds: int) -> Row:
    ours, theirs = _measured((name, of_jax), rounds, 1)
    return compared("staging", f"{ALL} one {name}", of_jax, ours[ALL], theirs[ALL], target, "ms")


def _measured(names: tuple[str, str], rounds: int, count: int) -> list[dict[str, list[float]]]:
    """Measure the milliseconds of each phase, in turns."""
    times: dict[str, dict[str, list[float]]] = {name: {phase: [] for phase in (*PHASES, ALL)} for name in names}
    for name in names:
        # The first callback of a kind loads modules.
        staged(SUBJECTS[name], 1)
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            for phase, each in staged(SUBJECTS[name], count).items():
                times[name][phase].append(each)
    return [times[name] for name in names]


if __name__ == "__main__":
    sys.exit(running.main({"staging": sys.modules[__name__]}, None, ["staging"]))
