"""Cases of callbacks in the functions that JAX's iterative solvers call: matrices, roots, linear solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse import linalg

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
    host = case.host(lambda x: MATRIX @ np.asarray(x))

    def product(x: Any) -> Any:
        result = case.apply(host, x)
        return result if case.callback.returns_new_value else MATRIX @ result

    with case.part(f"in {name}"):
        transposes = name == GMRES[0] and case.callback.refusals.differentiation
        errors = (ValueError, NotImplementedError) if transposes else ()
        program = jax.jit(lambda right: solve(product, right))
        found = case.or_refused(lambda: program(RIGHT), errors, ("transpos", "differentia", "JVP"))
        if found is None:
            return
        case.barrier()
        right = np.allclose(found, np.linalg.solve(MATRIX, RIGHT), atol=TOLERANCE)
        case.check(right, "result", Stage.RESULT, f"it found {found.tolist()}")
        seen = [event.leaves[0] for event in case.history(host).events]
        wanted = PRODUCTS[name] if name in PRODUCTS and case.callback.runs is Runs.ONCE else len(seen) or "some"
        case.same("wrong count", Stage.CALLBACK, len(seen), wanted, "calls for products")
        if name == OWN[0]:
            right = any(np.allclose(MATRIX @ x, RIGHT, atol=TOLERANCE * 10) for x in seen)
            case.check(right, "wrong operand", Stage.CALLBACK, f"it called back with {seen}, and never the solution")
