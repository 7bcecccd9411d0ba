"""A loop compiled by Numba as a JAX function that works in the device's memory, with `vmap` and a derivative.

Run it with `python examples/recipes/numba_kernel.py`; it needs `pip install numba`. It is for CPU devices. It prints a
smoothed signal, its gradient by the input, and whether these are those of the same loop in JAX.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np

import hostcb


@numba.njit(nogil=True)
def _smooth(x: np.ndarray, keep: float, out: np.ndarray) -> None:
    for row in range(x.shape[0]):
        state = x.dtype.type(0)
        for i in range(x.shape[1]):
            state = keep * state + (1 - keep) * x[row, i]
            out[row, i] = state


def _smoothed(x: Any, keep: float) -> Any:
    def on_rows(out: Any, x: Any) -> None:
        out, x = np.from_dlpack(out), np.from_dlpack(x)
        rows = -1, x.shape[-1]
        # Each of these is a view.
        _smooth(x.reshape(rows), keep, out.reshape(rows))

    return hostcb.dlpack_callback(on_rows, lambda x: x, in_place=True, vmap_method="broadcast_all")(x)


def smooth(x: Any, keep: float) -> Any:
    """Return the exponential moving average along the last axis, which is linear in `x`."""
    # A traced value would need an operand of its own; this refuses it.
    keep = float(keep)

    @jax.custom_vjp
    def linear(x: Any) -> Any:
        return _smoothed(x, keep)

    def backward(_: None, cotangent: Any) -> tuple[Any]:
        # The transposed filter is the same one, from the end to the beginning.
        return (jnp.flip(smooth(jnp.flip(cotangent, -1), keep), -1),)

    linear.defvjp(lambda x: (linear(x), None), backward)
    return linear(x)


def smooth_in_jax(x: Any, keep: float) -> Any:
    """Do the same with a `scan`, for one signal."""
    return jax.lax.scan(lambda state, x: (keep * state + (1 - keep) * x,) * 2, jnp.zeros((), x.dtype), x)[1]


def main() -> None:
    x = jnp.array([1.0, 0.0, 0.0, 1.0])
    print("smoothed", jax.jit(lambda x: smooth(x, 0.5))(x))
    print("gradient", jax.grad(lambda x: smooth(x, 0.5).sum())(x))
    batch = jax.random.normal(jax.random.key(0), (16, 1000))
    ours, theirs = (jax.jit(jax.vmap(lambda x, f=f: f(x, 0.9)))(batch) for f in (smooth, smooth_in_jax))
    print("the same:", bool(jnp.allclose(ours, theirs, atol=1e-5)))


if __name__ == "__main__":
    main()
