"""Tap gradients by name in the middle of a model: an identity whose backward pass taps the cotangent.

Run it with `python examples/recipes/named_gradients.py`. It prints the norm of the gradient of each layer's output, in
the order of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb

See = Callable[[str, Any], None]
"""Gets the name and the gradient, a tree of NumPy arrays."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def tap_gradient(see: See, name: str, value: Any) -> Any:
    """Return `value`; where it is differentiated, `see` gets the gradient by it."""
    return value


def _forward(see: See, name: str, value: Any) -> tuple[Any, None]:
    return value, None


def _backward(see: See, name: str, _: None, cotangent: Any) -> tuple[Any]:
    return (hostcb.id_tap(lambda cotangent, _: see(name, cotangent), cotangent),)


tap_gradient.defvjp(_forward, _backward)


def main() -> None:
    def see(name: str, gradient: Any) -> None:
        print(f"{name}: {np.linalg.norm(gradient):.4f}")

    def loss(weights: Any, x: Any) -> Any:
        for number, weight in enumerate(weights):
            x = tap_gradient(see, f"layer {number}", jnp.tanh(x @ weight))
        return jnp.mean(x**2)

    weights = [0.2 * jax.random.normal(jax.random.key(number), (64, 64)) for number in range(3)]
    jax.jit(jax.grad(loss))(weights, jnp.ones((8, 64)))
    hostcb.barrier_wait()


if __name__ == "__main__":
    main()
