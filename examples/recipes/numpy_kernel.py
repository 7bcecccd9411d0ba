"""A NumPy kernel that works in the device's own memory, without a copy: on operands, results, and a state in place.

Run it with `python examples/recipes/numpy_kernel.py`. It is for CPU devices. It prints a histogram of a batch, and one
that grows with each batch of a loop.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb

BINS = 8


def _count(out: Any, x: Any) -> None:
    np.from_dlpack(out)[:] = np.bincount(np.from_dlpack(x).ravel(), minlength=BINS)


def _count_more(out: Any, counts: Any, x: Any) -> None:
    # `counts` is the same memory as `out`.
    np.add.at(np.from_dlpack(out), np.from_dlpack(x), 1)


def histogram(x: Any) -> Any:
    """Count the integers below BINS in `x`."""
    return hostcb.dlpack_callback(_count, jax.ShapeDtypeStruct((BINS,), jnp.int32), in_place=True)(x)


def add_to_histogram(counts: Any, x: Any) -> Any:
    """Count those of `x` too. XLA copies `counts` only if the program still needs the old ones."""
    more = hostcb.dlpack_callback(_count_more, counts, in_place=True, input_output_aliases={0: 0})
    return more(counts, x)


def main() -> None:
    batches = jax.random.randint(jax.random.key(0), (100, 1000), 0, BINS)
    counts, _ = jax.jit(lambda batches: jax.lax.scan(
        lambda counts, x: (add_to_histogram(counts, x), None), jnp.zeros(BINS, jnp.int32), batches
    ))(batches)  # fmt: skip
    print("of the first", jax.jit(histogram)(batches[0]))
    print("of all      ", counts)
    print("the same:", bool((counts == jnp.bincount(batches.ravel(), length=BINS)).all()))


if __name__ == "__main__":
    main()
