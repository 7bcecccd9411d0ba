"""`verbose=True` of the solvers, which prints every step in order, and the error of a solve that fails."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
import timing


def residuals(y: Any, args: Any) -> Any:
    return jnp.stack([10 * (y[1] - y[0] ** 2), 1 - y[0]])


solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6, verbose=True)


@eqx.filter_jit
def solve(start: Any, max_steps: int = 100) -> Any:
    return optx.least_squares(residuals, solver, start, max_steps=max_steps).value


start = jnp.array([-1.2, 1.0])
print(solve(start).round(3).tolist())
jax.effects_barrier()
try:
    solve(start, max_steps=3)
except eqx.EquinoxRuntimeError as error:
    print([line for line in str(error).splitlines() if "maximum number of steps" in line])
jax.effects_barrier()

timing.report(lambda: solve(start))
