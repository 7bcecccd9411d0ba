"""A raw CUDA kernel, launched by CuPy on XLA's stream, as a JAX function: the largest value so far, in each row.

It is for CUDA devices, and needs `pip install cupy-cuda13x`. Run it with `python examples/recipes/cupy_kernel.py`: it
prints whether the result is that of JAX's own function. No GPU has run this file yet; tests check how it is lowered for
CUDA, and how it launches the kernel.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import jax

import hostcb

THREADS = 128

_running_maximum = cupy.RawKernel(
    r"""
extern "C" __global__ void running_maximum(const float* x, float* out, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = x[row * columns];
    for (int i = row * columns; i < (row + 1) * columns; ++i) out[i] = largest = fmaxf(largest, x[i]);
}
""",
    "running_maximum",
)


def _launch(out: Any, x: Any) -> None:
    *leading, columns = x.shape
    rows = math.prod(leading)
    # While this runs, XLA's stream is CuPy's current one: the host does not wait for the kernel.
    blocks = ((rows + THREADS - 1) // THREADS,)
    _running_maximum(blocks, (THREADS,), (cupy.from_dlpack(x), cupy.from_dlpack(out), rows, columns))


def running_maximum(x: Any) -> Any:
    """Return the largest value so far along the last axis of float32 numbers."""
    return hostcb.dlpack_callback(_launch, lambda x: x, in_place=True, vmap_method="broadcast_all")(x)


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (1000, 50))
    print("the same:", bool((jax.jit(running_maximum)(x) == jax.lax.cummax(x, axis=1)).all()))
    print("with vmap:", bool((jax.vmap(running_maximum)(x) == jax.lax.cummax(x, axis=1)).all()))


if __name__ == "__main__":
    main()
