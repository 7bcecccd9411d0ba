"""Taps with slow functions while the device computes: `python -m benchmarks.overlap`.

A tap function takes a millisecond without the interpreter lock, as writing a file does. The device computes for a
millisecond between two taps. A tap should cost the device only the copy.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hostcb
from benchmarks import running
from benchmarks.measuring import measure
from benchmarks.rows import Row, compared
from benchmarks.subjects import Subject

SECONDS = 1e-3
TARGET = 1.1
# Small enough that XLA computes in one thread, so that the consumer has the other core.
WIDTH = 64


def _slow(*_: Any) -> None:
    time.sleep(SECONDS)


def _tapped(value: Any) -> Any:
    return hostcb.id_tap(_slow, value)


def _debugged(value: Any) -> Any:
    jax.debug.callback(_slow, value)
    return value


def _program(steps: int, work: int, observe: Subject | None) -> Callable[[], Any]:
    matrix = jnp.eye(WIDTH, dtype=jnp.float32)

    def step(_: Any, carry: Any) -> Any:
        carry = jax.lax.fori_loop(0, work, lambda _, inner: jnp.tanh(inner @ matrix), carry)
        if observe is None:
            return carry
        # The next step uses the tapped value, so the tap runs between the two steps.
        return carry.at[0, 0].set(observe(carry[0, 0]))

    program = jax.jit(lambda start: jax.lax.fori_loop(0, steps, step, start))
    return functools.partial(program, matrix)


def calibrated(seconds: float = SECONDS, tries: int = 5) -> int:
    """Return the number of matrix products that take the device so many seconds."""
    work, steps = 16, 20
    for _ in range(tries):
        program = _program(steps, work, None)
        jax.block_until_ready(program())
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            jax.block_until_ready(program())
            took.append((time.perf_counter() - begin) / steps)
        if 0.9 <= min(took) / seconds <= 1.1:
            break
        work = max(1, round(work * seconds / min(took)))
    return work


def run(rounds: int = 9, steps: int = 100) -> list[Row]:
    work = calibrated()
    alone = "the device work alone"
    subjects = {alone: None, "100 slow taps": _tapped, "100 slow jax debug.callbacks": _debugged}
    times = measure({name: _program(steps, work, each) for name, each in subjects.items()}, rounds, steps)
    return [
        compared("overlap", name, alone, times[name]["device"], times[alone]["device"], target)
        for name, target in (("100 slow taps", TARGET), ("100 slow jax debug.callbacks", None))
    ]


if __name__ == "__main__":
    sys.exit(running.main({"overlap": sys.modules[__name__]}, None, ["overlap"]))
