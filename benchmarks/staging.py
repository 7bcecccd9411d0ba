"""The cost of a program of many callbacks before it runs: `python -m benchmarks.staging`.

It compares 500 taps with 500 of JAX's debug callbacks, phase by phase and in total. Each round makes a new function, so
that no cache has it.
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
    times: dict[str, dict[str, list[float]]] = {name: {phase: [] for phase in (*PHASES, ALL)} for name in names}
    for name in names:
        # The first callback of a kind loads modules.
        staged(SUBJECTS[name], 1)
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            for phase, each in staged(SUBJECTS[name], count).items():
                times[name][phase].append(each)
    ours, theirs = (times[name] for name in names)
    return [
        compared("staging", f"{phase} {count} taps", f"{count} {names[1]}s", ours[phase], theirs[phase], TARGET, "ms")
        for phase in (*PHASES, ALL)
    ]


if __name__ == "__main__":
    sys.exit(running.main({"staging": sys.modules[__name__]}, None, ["staging"]))
