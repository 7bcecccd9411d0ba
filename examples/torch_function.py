"""Call a PyTorch function from JAX, with reverse-mode derivatives of any order.

The function runs on the host, also under jit and in control flow. Its derivative is PyTorch's own. The backward pass is
a PyTorch function too, the vector-Jacobian product. So it is called in the same way, and so is its derivative in turn.

Run it with `python examples/torch_function.py`; it needs `pip install torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import hostcb as hcb


def call_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function from floating-point tensors to a tensor, or a tuple of tensors, to one of JAX arrays."""

    def on_host(args: tuple[np.ndarray, ...]) -> Any:
        return jax.tree.map(lambda tensor: tensor.numpy(), function(*map(torch.from_numpy, args)))

    def result_shape(args: tuple[jax.Array, ...]) -> Any:
        # Tensors on the device "meta" only have shapes and dtypes, so this computes nothing.
        metas = [torch.empty(arg.shape, dtype=_torch_dtype(arg.dtype), device="meta") for arg in args]
        return jax.tree.map(lambda meta: jax.ShapeDtypeStruct(tuple(meta.shape), _numpy_dtype(meta)), function(*metas))

    @jax.custom_vjp
    def called(*args: jax.Array) -> Any:
        return hcb.call(on_host, args, result_shape=result_shape(args))

    def forward(*args: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
        return called(*args), args

    def backward(args: tuple[jax.Array, ...], cotangent: Any) -> Any:
        # If the function returns a tuple, as `product` itself does, its cotangent is a tuple too.
        leaves, tree = jax.tree.flatten(cotangent)

        def product(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cotangents, primals = tensors[: len(leaves)], tensors[len(leaves) :]
            return torch.func.vjp(function, *primals)[1](jax.tree.unflatten(tree, cotangents))

        return call_torch(product)(*leaves, *args)

    called.defvjp(forward, backward)
    return called


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty((), dtype)).dtype


def _numpy_dtype(tensor: torch.Tensor) -> np.dtype:
    return torch.empty((), dtype=tensor.dtype).numpy().dtype


def main() -> None:
    def energy(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return scale * torch.sum(torch.sin(x) * x)

    jax_energy = call_torch(energy)
    x, scale = np.linspace(0.0, 1.0, 4, dtype=np.float32), np.float32(2.0)
    print("value     ", jax.jit(jax_energy)(x, scale))
    print("gradient  ", jax.jit(jax.grad(jax_energy))(x, scale))
    second = jax.grad(lambda x: jax.grad(jax_energy)(x, scale).sum())
    print("second    ", jax.jit(second)(x))
    print("by scale  ", jax.grad(jax_energy, argnums=1)(x, scale))


if __name__ == "__main__":
    main()
