"""The time of a program's part with callbacks, as `compare.py` reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax


def report(run: Callable[[], Any], rounds: int = 7) -> None:
    """Print how long `run` takes at best, with all of its callbacks; it has run before."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        jax.block_until_ready(run())
        jax.effects_barrier()
        best = min(best, time.perf_counter() - started)
    print(f"seconds: {best:.5f}")
