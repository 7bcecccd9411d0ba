"""SciPy finds the root of an equation in a JAX program, with derivatives of any order by the implicit function theorem.

SciPy comes with JAX. Run it with `python examples/recipes/scipy_root.py`: it solves Kepler's equation, and prints the
root and its derivatives, beside the formula for the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# hostcb must be imported before the first use of JAX's devices, since the callback runs JAX.
import hostcb  # isort: skip

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize


def root_of(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function from a guess and parameters to the vector x for which `function(x, parameters)` is zero."""
    compiled, jacobian = jax.jit(function), jax.jit(jax.jacobian(function))

    def on_host(guess: np.ndarray, parameters: Any) -> np.ndarray:
        tolerance = 10 * float(np.finfo(guess.dtype).eps)
        found = scipy.optimize.root(
            lambda x: np.asarray(compiled(x.astype(guess.dtype), parameters)),
            guess,
            jac=lambda x: np.asarray(jacobian(x.astype(guess.dtype), parameters)),
            tol=tolerance,
        )
        if not found.success:
            raise ArithmeticError(f"there is no root near {guess}: {found.message}")
        return found.x.astype(guess.dtype)

    @jax.custom_jvp
    def root(guess: Any, parameters: Any) -> Any:
        shape = jax.ShapeDtypeStruct(guess.shape, guess.dtype)
        return hostcb.pure_callback(on_host, shape, guess, parameters, vmap_method="sequential")

    @root.defjvp
    def _root_jvp(primals: Any, tangents: Any) -> Any:
        guess, parameters = primals
        # The root does not depend on the guess. It is the function itself here, so there are further derivatives.
        x = root(guess, parameters)
        _, change = jax.jvp(lambda parameters: function(x, parameters), (parameters,), (tangents[1],))
        return x, -jnp.linalg.solve(jax.jacobian(function)(x, parameters), change)

    return root


def main() -> None:
    eccentricity = 0.5

    def kepler(x: Any, mean_anomaly: Any) -> Any:
        return x - eccentricity * jnp.sin(x) - mean_anomaly

    def anomaly(mean_anomaly: Any) -> Any:
        return root_of(kepler)(jnp.ones(1), mean_anomaly)[0]

    x = jax.jit(anomaly)(1.0)
    print(f"root      {x:.4f}")
    print(f"gradient  {jax.grad(anomaly)(1.0):.4f}")
    print(f"formula   {1 / (1 - eccentricity * jnp.cos(x)):.4f}")
    print(f"second    {jax.grad(jax.grad(anomaly))(1.0):.4f}")
    print("batch    ", *(f"{x:.4f}" for x in jax.vmap(anomaly)(jnp.arange(1.0, 4.0))))


if __name__ == "__main__":
    main()
