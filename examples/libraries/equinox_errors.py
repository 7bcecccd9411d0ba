"""`error_if` with its report, `filter_pure_callback`, `debug.backward_nan`, `debug.inspect_dce`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import timing


@eqx.filter_jit
def checked(x: Any) -> Any:
    return eqx.error_if(x, x < 0, "x must not be negative")


assert checked(jnp.float32(1.0)) == 1.0
for _ in range(2):
    try:
        checked(jnp.float32(-1.0))
    except eqx.EquinoxRuntimeError as error:
        text = str(error)
        print([line for line in text.splitlines() if "negative" in line], "Above is the stack outside of JIT" in text)
assert checked(jnp.float32(2.0)) == 2.0


def host(x: Any, name: str) -> Any:
    return np.asarray(x.at[0].set(len(name)))


called = eqx.filter_jit(
    lambda x, name: eqx.filter_pure_callback(host, x, name, result_shape_dtypes=x, vmap_method="sequential")
)
print(called(jnp.ones(3), "name").tolist(), eqx.filter_vmap(called, in_axes=(0, None))(jnp.ones((2, 2)), "n").tolist())


@jax.jit
@jax.grad
def slope(x: Any) -> Any:
    y = eqx.debug.backward_nan(x, name="x", terminate=False)
    return jnp.sqrt(y - 1.0)


print(slope(1.0))
jax.effects_barrier()


@jax.jit
def partly_used(x: Any) -> Any:
    kept, _ = eqx.debug.store_dce((x, 2 * x))
    return kept


partly_used(1.0)
eqx.debug.inspect_dce()

timing.report(lambda: [called(jnp.ones(3), "name") for _ in range(50)])
