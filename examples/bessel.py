"""SciPy's Bessel function of the first kind in JAX, with derivatives of any order, `vmap` and `jit`.

SciPy comes with JAX. The order is an integer and has no derivative. The derivative by the argument is a recurrence over
the function itself, so it can be differentiated again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import scipy.special

import hostcb


@jax.custom_jvp
def bessel(order: Any, z: Any) -> Any:
    """Return J of integer `order` at `z`; both are broadcast."""
    order, z = jnp.asarray(order), jnp.asarray(z)
    if not jnp.issubdtype(order.dtype, jnp.integer):
        raise TypeError(f"order must be an integer, got {order.dtype}")
    z = z.astype(jnp.result_type(float, z.dtype))
    shape = jax.ShapeDtypeStruct(jnp.broadcast_shapes(order.shape, z.shape), z.dtype)

    def on_host(order: Any, z: Any) -> Any:
        return scipy.special.jv(order, z).astype(z.dtype)

    # SciPy broadcasts by itself, so all elements of a batch take one call.
    return hostcb.pure_callback(on_host, shape, order, z, vmap_method="broadcast_all")


@bessel.defjvp
def _bessel_jvp(primals: Any, tangents: Any) -> Any:
    order, z = primals
    _, dz = tangents
    below, above = bessel(order - 1, z), bessel(order + 1, z)
    return bessel(order, z), dz * jnp.where(order == 0, -above, (below - above) / 2)


def main() -> None:
    first = partial(bessel, 1)
    print("value   ", jax.jit(first)(2.0))
    print("gradient", jax.grad(first)(2.0))
    print("hessian ", jax.hessian(first)(2.0))
    print("batch   ", jax.vmap(first)(jnp.arange(4.0)))


if __name__ == "__main__":
    main()
