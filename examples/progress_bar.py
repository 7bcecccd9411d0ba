"""A progress bar for a loop on the device: one tap every few steps, for which the device does not wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hostcb


def with_progress(step: Callable[[Any, Any], Any], steps: int, every: int) -> Callable[[Any, Any], Any]:
    """Wrap `step` of a `scan` over `jnp.arange(steps)`: print a line every `every` steps."""

    def show(index: Any, _: Any) -> None:
        done = int(index) + 1
        width = 20 * done // steps
        sys.stdout.write(f"[{'#' * width}{'.' * (20 - width)}] {done}/{steps}\n")

    def shown(carry: Any, index: Any) -> Any:
        due = (index + 1) % every == 0
        index = jax.lax.cond(due, lambda i: hostcb.id_tap(show, i), lambda i: i, index)
        return step(carry, index)

    return shown


def main() -> None:
    def step(carry: Any, index: Any) -> Any:
        return carry + jnp.sin(index), None

    steps = 1000
    total, _ = jax.jit(lambda start: jax.lax.scan(with_progress(step, steps, 250), start, jnp.arange(steps)))(0.0)
    hostcb.barrier_wait()
    print(f"total {float(total):.4f}")


if __name__ == "__main__":
    main()
