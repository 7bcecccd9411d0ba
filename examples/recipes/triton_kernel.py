"""A Triton kernel, launched on XLA's stream, as a JAX function with a derivative: softmax of each row.

It is for CUDA devices, and needs `pip install torch triton`. Run it with `python examples/recipes/triton_kernel.py`: it
prints whether value and gradient are those of JAX's own function. No GPU has run this file yet; tests check how it is
lowered for CUDA, how it launches the kernel, and that Triton compiles that.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
import triton
import triton.language as tl

import hostcb


@triton.jit
def _softmax_kernel(x, out, columns, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    first = tl.program_id(0) * columns
    row = tl.load(x + first + offsets, offsets < columns, other=float("-inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + first + offsets, powers / tl.sum(powers, axis=0), offsets < columns)


def _launch(out: Any, x: Any) -> None:
    out, x = torch.from_dlpack(out), torch.from_dlpack(x)
    columns = x.shape[-1]
    # Triton launches on torch's current stream, which is XLA's while this runs.
    _softmax_kernel[(x.numel() // columns,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))


@jax.custom_jvp
def softmax(x: Any) -> Any:
    """Return the softmax along the last axis."""
    # It launches the same work each time and does nothing else, so XLA may record it and repeat it without Python.
    return hostcb.dlpack_callback(
        _launch, lambda x: x, in_place=True, vmap_method="broadcast_all", command_buffer_compatible=True
    )(x)


@softmax.defjvp
def _softmax_jvp(primals: Any, tangents: Any) -> Any:
    y = softmax(*primals)
    along = y * tangents[0]
    return y, along - y * jnp.sum(along, axis=-1, keepdims=True)


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (1000, 300))
    print("value:", bool(jnp.allclose(jax.jit(softmax)(x), jax.nn.softmax(x), atol=1e-6)))
    ours, theirs = (jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2)))(x) for f in (softmax, jax.nn.softmax))
    print("gradient:", bool(jnp.allclose(ours, theirs, atol=1e-6)))


if __name__ == "__main__":
    main()
