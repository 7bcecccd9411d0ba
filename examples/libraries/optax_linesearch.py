"""`verbose=True` of the line searches, which print where a step fails, in `scan` and `while_loop`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import timing


def rough(x: Any) -> Any:
    """No step along its gradient decreases it enough."""
    return jnp.sum(jnp.abs(x) ** 0.5 * jnp.cos(40 * x))


def solver_of(search: Any) -> Any:
    solver = optax.chain(optax.sgd(1.0), search)

    @jax.jit
    def solve(start: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, state = carry
            value, gradient = jax.value_and_grad(rough)(x)
            updates, state = solver.update(gradient, state, x, value=value, grad=gradient, value_fn=rough)
            return (optax.apply_updates(x, updates), state), value

        return jax.lax.scan(step, (start, solver.init(start)), None, length=20)

    return solve


searches = {
    "backtracking": optax.scale_by_backtracking_linesearch(max_backtracking_steps=2, verbose=True),
    "zoom": optax.scale_by_zoom_linesearch(max_linesearch_steps=2, verbose=True),
}
start = jnp.array([0.3, -0.7])
programs = {name: solver_of(search) for name, search in searches.items()}
for name, program in programs.items():
    print(name)
    (x, _), values = program(start)
    jax.effects_barrier()
    print(x.round(4).tolist(), values[-1].round(4))

timing.report(lambda: [program(start) for program in programs.values()])
