"""Programs that tap numbers in a loop, and what their taps have seen, for programs/taps_on_streams.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hostcb as hcb
from hostcb._runtime.queue import rings
from hostcb._runtime.queue.queues import queues


class Seen(list[Any]):
    """What taps have seen."""

    def tap(self, arg: Any, transforms: Any) -> None:
        self.append(jax.tree.map(lambda leaf: leaf.tolist(), arg))

    def must_be(self, expected: Any) -> None:
        expected = list(expected)
        if self != expected:
            wrong = next((n for n, (a, b) in enumerate(zip(self, expected, strict=False)) if a != b), len(expected))
            raise AssertionError(f"{len(self)} of {len(expected)} came; from {wrong}: {self[wrong : wrong + 4]}")
        self.clear()


def taps_in_loop(tap: Callable[..., Any], steps: int, width: int = 1) -> Any:
    """A program that taps an array of `x`, of `x + 1`, …"""

    def step(_: Any, x: Any) -> Any:
        return hcb.id_tap(tap, x) + 1

    program = jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, jnp.full((width,), x)))
    return lambda x: jax.block_until_ready(program(float(x)))


def rows(steps: int, width: int = 1) -> list[Any]:
    return [[float(n)] * width for n in range(steps)]


def ring_of(device: int = 0) -> rings.Ring:
    ring = queues[jax.devices()[device]].ring
    assert ring is not None
    return ring


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end, "it has not come so far in 30 s"
        time.sleep(1e-3)
