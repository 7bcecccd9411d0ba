"""Feed a loop on the device with batches of a Python iterator, until it ends; the next batch is made meanwhile.

Run it with `python examples/recipes/feeding_data.py`. It prints the number of batches and the mean of all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class Feed:
    """An iterator of batches of one shape, whose next batch is made in a thread while the device uses the last one."""

    def __init__(self, batches: Iterable[Any], like: Any) -> None:
        self._batches = iter(batches)
        self._like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
        self._maker = ThreadPoolExecutor(1)
        self._next = self._maker.submit(next, self._batches, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._maker.shutdown()

    def next(self) -> tuple[Any, Any]:
        """Return, in a program on the device, whether there is a batch, and the batch or zeros."""
        shapes = jax.ShapeDtypeStruct((), bool), self._like
        return hostcb.io_callback(self._take, shapes, ordered=True)

    def _take(self) -> tuple[Any, Any]:
        batch = self._next.result()
        if batch is None:
            return np.False_, jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._like)
        self._next = self._maker.submit(next, self._batches, None)
        return np.True_, batch


def fold(step: Callable[[Any, Any], Any], state: Any, feed: Feed) -> Any:
    """Return the state after `step(state, batch)` for all batches, whose number the program does not know."""

    def body(carry: Any) -> Any:
        state, (_, batch) = carry
        return step(state, batch), feed.next()

    return jax.lax.while_loop(lambda carry: carry[1][0], body, (state, feed.next()))[0]


def main() -> None:
    def batches() -> Iterator[np.ndarray]:
        generator = np.random.default_rng(0)
        for _ in range(50):
            yield generator.normal(loc=3.0, size=(1000,)).astype(np.float32)

    def step(state: Any, batch: Any) -> Any:
        count, total = state
        return count + 1, total + jnp.mean(batch)

    with Feed(batches(), like=np.zeros(1000, np.float32)) as feed:
        count, total = jax.jit(lambda state: fold(step, state, feed))((0, 0.0))
        print(f"{count} batches, mean {total / count:.3f}")


if __name__ == "__main__":
    main()
