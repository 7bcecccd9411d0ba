"""Run a JAX function on another device than the rest of the program, with derivatives of any order.

The arguments go from the device to the host and from there to the other device, and the results come back. The function
keeps its derivatives: the backward pass runs on the other device too.

Run it with `XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_on_another_device.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# hostcb must be imported before the first use of JAX's devices.
import hostcb as hcb  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np


def call_jax_other_device(function: Callable[..., Any], device: jax.Device) -> Callable[..., Any]:
    """Return `function` of arrays, computed on `device` from a program on any device."""
    compiled = jax.jit(function)

    def on_host(args: Any) -> Any:
        return jax.tree.map(np.asarray, compiled(*jax.device_put(args, device)))

    @jax.custom_vjp
    def called(*args: Any) -> Any:
        return hcb.call(on_host, args, result_shape=jax.eval_shape(function, *args))

    def forward(*args: Any) -> tuple[Any, Any]:
        return called(*args), args

    def backward(args: Any, cotangent: Any) -> Any:
        def product(cotangent: Any, *args: Any) -> Any:
            return jax.vjp(function, *args)[1](cotangent)

        return call_jax_other_device(product, device)(cotangent, *args)

    called.defvjp(forward, backward)
    return called


def main() -> None:
    other = jax.devices()[-1]

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x) * y**2)

    elsewhere = call_jax_other_device(function, other)
    x, y = jnp.arange(3.0), jnp.arange(1.0, 4.0)
    print(f"on {other}, called from {jax.devices()[0]}")
    print("value     ", jax.jit(elsewhere)(x, y))
    print("gradient  ", jax.jit(jax.grad(elsewhere))(x, y))
    second = jax.grad(lambda x: jnp.sum(jax.grad(elsewhere)(x, y) ** 2))
    print("second    ", jax.jit(second)(x))


if __name__ == "__main__":
    main()
