"""Stop a training early: the host decides at each step in the loop's condition, or between two chunks of steps.

Run it with `python examples/recipes/early_stopping.py`. It prints how many steps each of them did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class Patience:
    """Is over when the loss has not become smaller for some steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._best = math.inf
        self._since = 0
        self.is_over = False

    def look(self, loss: Any) -> None:
        """Take notice of a step's loss."""
        self._since = 0 if loss < self._best else self._since + 1
        self._best = min(self._best, float(loss))
        self.is_over |= self._since >= self._steps


Step = Callable[[Any], tuple[Any, Any]]
"""A step of the training, from its state to its next state and the loss."""


def train_until(patience: Patience, step: Step, state: Any) -> Any:
    """Let the host decide at each step; the device waits for the decision. Return the state and the steps done."""

    def goes_on(loss: Any) -> Any:
        patience.look(loss)
        return np.bool_(not patience.is_over)

    def condition(carry: Any) -> Any:
        _, loss, _ = carry
        return hostcb.call(goes_on, loss, result_shape=jax.ShapeDtypeStruct((), bool))

    def body(carry: Any) -> Any:
        state, _, done = carry
        return *step(state), done + 1

    state, _, done = jax.jit(lambda state: jax.lax.while_loop(condition, body, (state, jnp.inf, 0)))(state)
    return state, int(done)


def train_in_chunks(patience: Patience, step: Step, state: Any, chunk: int) -> Any:
    """Decide in Python after each `chunk` of steps; the device waits for nothing within them."""

    def watched(state: Any, _: Any) -> Any:
        state, loss = step(state)
        hostcb.id_tap(lambda loss, _: patience.look(loss), loss)
        return state, None

    steps = jax.jit(lambda state: jax.lax.scan(watched, state, None, length=chunk)[0])
    done = 0
    while not patience.is_over:
        state = steps(state)
        done += chunk
        # Without this the decision may come some chunks later, and the host never waits either.
        hostcb.barrier_wait()
    return state, done


def main() -> None:
    def step(state: Any) -> tuple[Any, Any]:
        x, speed = state
        speed = 0.9 * speed - 0.1 * x
        return (x + speed, speed), jnp.sum(x**2)

    start = jnp.arange(4.0), jnp.zeros(4)
    (x, _), done = train_until(Patience(20), step, start)
    print(f"in the condition: {done} steps, {float(jnp.sum(x**2)):.3f}")
    (x, _), done = train_in_chunks(Patience(20), step, start, 20)
    print(f"in chunks of 20: {done} steps, {float(jnp.sum(x**2)):.3f}")


if __name__ == "__main__":
    main()
