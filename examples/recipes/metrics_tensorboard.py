"""Metrics of a training loop on the device in TensorBoard: a curve for each scalar, a histogram for each array.

Run it with `python examples/recipes/metrics_tensorboard.py runs/first`; it needs `pip install tensorboardX`, which
writes TensorBoard's files in a thread of its own. It prints the loss at the end. `tensorboard --logdir runs` shows it.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from tensorboardX import SummaryWriter

import hostcb


class TensorBoard:
    """A folder of TensorBoard's that gets what is tapped."""

    def __init__(self, folder: str) -> None:
        self._writer = SummaryWriter(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            hostcb.barrier_wait()
        finally:
            self._writer.close()

    def tap(self, step: Any, metrics: dict[str, Any]) -> None:
        """Write the metrics of a step in a program on the device, which goes on at once."""
        hostcb.id_tap(self._write, (step, metrics))

    def _write(self, tapped: tuple[Any, dict[str, Any]], transforms: Any) -> None:
        step, metrics = tapped
        for name, value in metrics.items():
            add = self._writer.add_histogram if np.ndim(value) else self._writer.add_scalar
            add(name, value, int(step))


def train(board: TensorBoard, weights: Any, steps: int, histogram_every: int) -> Any:
    """Fit `weights`, and show the loss at each step and the weights at some."""
    inputs = jax.random.normal(jax.random.key(0), (64, 16))

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(inputs @ weights) - jnp.tanh(inputs[:, 0])) ** 2)

    def step(weights: Any, index: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights)
        board.tap(index, {"loss": value, "gradient": jnp.linalg.norm(gradient)})
        due = index % histogram_every == 0
        jax.lax.cond(due, lambda: board.tap(index, {"weights": weights}), lambda: None)
        return weights - 0.1 * gradient, value

    return jax.lax.scan(step, weights, jnp.arange(steps))


def main(folder: str) -> None:
    with TensorBoard(folder) as board:
        fit = jax.jit(partial(train, board, steps=500, histogram_every=100))
        _, losses = fit(jnp.zeros(16))
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")


if __name__ == "__main__":
    main(sys.argv[1])
