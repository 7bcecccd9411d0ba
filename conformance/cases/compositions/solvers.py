"""Cases of callbacks in the functions that JAX's iterative solvers call: matrices, roots, linear solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse import linalg

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case
from ..harness.registry import EVERY_KIND

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


@case("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
def in_solvers(case: Case) -> None:
    """The function that multiplies by a matrix calls back: the solution is right, and each product calls once."""
    for name, solve in (CG, OWN):
        _check_solver(case, name, solve)


@case("jit", "id_tap call io_callback debug_callback_ordered", also="H4 H8")
def in_gmres(case: Case) -> None:
    """JAX transposes what gmres multiplies by: a callback that refuses derivatives refuses this with an error."""
    _check_solver(case, *GMRES)


def _check_solver(case: Case, name: str, solve: Callable[[Product, Any], Any]) -> None:
    seen: list[Any] = []

    def host(x: Any) -> Any:
        seen.append(np.array(x))
        return MATRIX @ seen[-1]

    def product(x: Any) -> Any:
        result = case.call_back(host, x)
        return result if case.callback.returns_new_value else MATRIX @ result

    try:
        found = np.asarray(jax.jit(lambda right: solve(product, right))(RIGHT))
        case.implementation.barrier()
    except Exception as error:
        case.drain()
        if name == GMRES[0] and case.callback.refusals.differentiation and _is_of_derivatives(error):
            return
        case.wrong("error", stage_of(error), f"in {name}: {summary(error)}")
        return
    solution = np.linalg.solve(MATRIX, RIGHT)
    if not np.allclose(found, solution, atol=TOLERANCE):
        witness = f"{name} found {found.tolist()}, expected {solution.tolist()}"
        case.wrong("result", Stage.RESULT, witness)
    wanted = PRODUCTS.get(name)
    if not seen or (case.callback.runs is Runs.ONCE and wanted is not None and len(seen) != wanted):
        witness = f"{name} called back for {len(seen)} products, expected {wanted or 'some'}"
        case.wrong("wrong count", Stage.CALLBACK, witness)
    elif not any(np.allclose(MATRIX @ x, RIGHT, atol=TOLERANCE * 10) for x in seen) and name == OWN[0]:
        witness = f"{name} called back with {[x.tolist() for x in seen]}, and never with the solution"
        case.wrong("wrong operand", Stage.CALLBACK, witness)
    case.barrier()


def _is_of_derivatives(error: Exception) -> bool:
    return isinstance(error, ValueError | NotImplementedError) and any(
        word in str(error) for word in ("transpos", "differentia", "JVP")
    )
