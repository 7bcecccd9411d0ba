"""Derivatives in which JAX runs a part of a program again, or drops one: the loop of a solver, an optimized rule."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..harness.case import Case, case
from ..harness.hosts import add_one


@case("jit", "id_tap call io_callback io_callback_ordered debug_callback debug_callback_ordered", "H4 H6 X3 X4")
def in_a_solver(case: Case) -> None:
    """A while_loop calls back once at each step, also under grad where nothing needs the derivative of its result."""
    host = case.host(add_one)

    def step(carry: Any) -> Any:
        number, x = carry
        case.apply(host, jax.lax.stop_gradient(x))
        return number + 1, x * 2

    def function(x: Any) -> Any:
        return x * jax.lax.stop_gradient(jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1])

    case.gives(np.float32(8), jax.jit(jax.grad(function)), np.float32(1))
    case.saw(host, [np.float32(1), np.float32(2), np.float32(4)])


@case("jit", "id_tap call debug_callback debug_callback_ordered", "H4 X4")
def in_an_optimized_rule(case: Case) -> None:
    """A forward rule with optimize_remat=True runs its callback once, also if it leaves the backward rule nothing."""
    host = case.host(add_one)

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    def forward(x: Any) -> tuple[Any, None]:
        case.apply(host, x)
        return x * 2, None

    double.defvjp(forward, lambda _, cotangent: (cotangent * 2,), optimize_remat=True)
    case.gives(np.float32(2), jax.jit(jax.grad(double)), np.float32(3))
    case.saw(host, [np.float32(3)])
