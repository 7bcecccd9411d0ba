"""Fault cells of callbacks in the functions that JAX's iterative solvers call: matrices, roots, linear solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse import linalg

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import EVERY_KIND, planted

MATRIX = np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]], np.float32)
RIGHT = np.array([1, 2, 3], np.float32)
STEPS = 40
TOLERANCE = 1e-3

Product = Callable[[Any], Any]


def _richardson(product: Product, right: Any) -> Any:
    """A solver of the suite's own: steps in the direction of the residual."""
    return jax.lax.fori_loop(0, STEPS, lambda _, x: x + (right - product(x)) / 4, jnp.zeros_like(right))


CG = "cg", lambda product, right: linalg.cg(product, right, maxiter=3)[0]
OWN = (
    "custom_linear_solve",
    lambda product, right: jax.lax.custom_linear_solve(product, right, _richardson, symmetric=True),
)
GMRES = "gmres", lambda product, right: linalg.gmres(product, right, restart=3, maxiter=2)[0]
PRODUCTS = {"cg": 1 + 3, "custom_linear_solve": STEPS}
"""The number of products, of solvers whose number does not depend on rounding."""


@planted("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
def in_solvers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The function that multiplies by a matrix calls back: the solution is right, and each product calls once."""
    return [anomaly for name, solve in (CG, OWN) for anomaly in _check_solver(bench, callback, name, solve)]


@planted("jit", "id_tap call io_callback debug_callback_ordered", also="H4 H8")
def in_gmres(bench: Bench, callback: Callback) -> list[Anomaly]:
    """JAX transposes what gmres multiplies by: a callback that refuses derivatives refuses this, in words."""
    return _check_solver(bench, callback, *GMRES)


def _check_solver(bench: Bench, callback: Callback, name: str, solve: Callable[[Product, Any], Any]) -> list[Anomaly]:
    seen: list[Any] = []

    def host(x: Any) -> Any:
        seen.append(np.array(x))
        return MATRIX @ seen[-1]

    def product(x: Any) -> Any:
        result = bench.apply(callback, host, x)
        return result if callback.returns_new_value else MATRIX @ result

    try:
        found = np.asarray(jax.jit(lambda right: solve(product, right))(RIGHT))
        bench.implementation.barrier()
    except Exception as error:
        error_of(bench.implementation.barrier)
        if name == GMRES[0] and callback.refusals.differentiation and _is_of_derivatives(error):
            return []
        return [Anomaly("error", stage_of(error), f"in {name}: {summary(error)}")]
    anomalies: list[Anomaly] = []
    solution = np.linalg.solve(MATRIX, RIGHT)
    if not np.allclose(found, solution, atol=TOLERANCE):
        witness = f"{name} found {found.tolist()}, expected {solution.tolist()}"
        anomalies.append(Anomaly("result", Stage.RESULT, witness))
    wanted = PRODUCTS.get(name)
    if not seen or (callback.runs is Runs.ONCE and wanted is not None and len(seen) != wanted):
        witness = f"{name} called back for {len(seen)} products, expected {wanted or 'some'}"
        anomalies.append(Anomaly("wrong count", Stage.CALLBACK, witness))
    elif not any(np.allclose(MATRIX @ x, RIGHT, atol=TOLERANCE * 10) for x in seen) and name == OWN[0]:
        witness = f"{name} called back with {[x.tolist() for x in seen]}, and never with the solution"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, f"after {name}")


def _is_of_derivatives(error: Exception) -> bool:
    return isinstance(error, ValueError | NotImplementedError) and any(
        word in str(error) for word in ("transpos", "differentia", "JVP")
    )
