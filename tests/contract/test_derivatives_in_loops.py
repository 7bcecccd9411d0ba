"""Derivatives through control flow (H6), and callbacks in a differentiated loop that depend on no step (H4, X3, X4)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record
from support.pairwise import in_turns
from test_derivatives import GRADIENTS

import hostcb as hcb

CONTROL = {
    "cond": lambda tap: lambda x: lax.cond(x > 0, lambda y: jnp.sin(tap(y)), lambda y: y, x),
    "while": lambda tap: lambda x: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(tap(s[1]))), (0, x))[1],
    "scan": lambda tap: lambda x: lax.scan(lambda c, _: (jnp.sin(tap(c)), None), x, None, length=3)[0],
    "jit": lambda tap: jax.jit(lambda x: jnp.sin(tap(x))),
    "named_call": lambda tap: jax.named_call(lambda x: jnp.sin(tap(x)), name="n"),
    "custom_jvp_caller": lambda tap: lambda x: jax.nn.relu(jnp.sin(tap(x))),
}  # fmt: skip


@pytest.mark.contract("H6", "H7")
@in_turns(("construct", "derivative"), CONTROL, ["jvp", "grad", "vmap_grad", "grad_vmap", "jit_grad"], times=3)
def test_derivatives_through_control_flow(construct: str, derivative: str) -> None:
    if construct == "while" and derivative != "jvp":
        construct = "scan"
    record = Record()
    tapped = CONTROL[construct](lambda x: hcb.id_tap(record.tap, x))
    plain = CONTROL[construct](lambda x: x)
    apply = {
        "jvp": lambda f: jax.jvp(f, (0.5,), (1.0,)),
        "grad": lambda f: jax.grad(f)(0.5),
        "jit_grad": lambda f: jax.jit(jax.grad(f))(0.5),
        "vmap_grad": lambda f: jax.vmap(jax.grad(f))(jnp.array([0.5, 0.7])),
        "grad_vmap": lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x)))(jnp.array([0.5, 0.7])),
    }[derivative]
    np.testing.assert_allclose(helpers.finish(apply(tapped)), apply(plain), rtol=1e-5)
    wanted = 3 if construct in ("while", "scan") else 1
    assert len(record.all) == wanted, f"{derivative} of {construct}: {len(record.all)} callbacks: {record.values}"


ZEROS = np.zeros(3, np.float32)

IN_A_LOOP: dict[str, Any] = {
    "tap": lambda called: hcb.id_tap(lambda arg, _: called.append(1), ZEROS),
    "call": lambda called: hcb.call(lambda arg: (called.append(1), arg)[1], ZEROS, result_shape=ZEROS),
    "io": lambda called: hcb.io_callback(lambda: called.append(1), None),
    "io ordered": lambda called: hcb.io_callback(lambda arg: called.append(1), None, ZEROS, ordered=True),
    "debug": lambda called: hcb.debug.callback(lambda: called.append(1)),
    "debug ordered": lambda called: hcb.debug.callback(lambda arg: called.append(1), ZEROS, ordered=True),
}


@pytest.mark.contract("H4", "X3", "X4")
@in_turns(("kind", "gradient"), IN_A_LOOP, GRADIENTS, times=2)
def test_what_depends_on_no_step_runs_at_every_step_all_the_same(kind: str, gradient: str) -> None:
    """Guards against jax-ml/jax#16637: JAX's own debug callbacks run once, before the loop."""
    called: list[int] = []

    def loss(x: Any, watched: bool) -> Any:
        def step(carry: Any, y: Any) -> Any:
            if watched:
                IN_A_LOOP[kind](called)
            # Something else that JAX takes out of the loop, or would.
            weight = jnp.sin(3 * jnp.asarray(ZEROS) + 1).sum() * x
            return jnp.sin(carry * weight) * y, jnp.exp(carry * weight)

        carry, ys = lax.scan(step, x, jnp.arange(1.0, 5.0))
        return carry + ys.sum()

    out, plain = (jax.jit(GRADIENTS[gradient](lambda x, w=w: loss(x, w)))(0.7) for w in (True, False))
    hcb.barrier_wait()
    np.testing.assert_allclose(out, plain, rtol=1e-6)
    assert len(called) == 4


@pytest.mark.contract("H6", "X4")
@STAGES
def test_what_depends_on_no_step_runs_at_every_step_of_a_checkpoint_too(stage: Any) -> None:
    """JAX takes it out by another way there; what else does not change finds its way back in."""
    called: list[int] = []
    rows = jnp.arange(3.0)

    def loss(x: Any, watched: bool) -> Any:
        def step(carry: Any, y: Any) -> Any:
            if watched:
                hcb.debug.callback(lambda: called.append(1))
            return jnp.sin(carry * jnp.cos(rows).sum()) * y, jnp.exp(carry * x * rows.sum())

        carry, ys = jax.checkpoint(lambda x: lax.scan(step, x, jnp.arange(1.0, 5.0)))(x)
        return carry + ys.sum()

    out, plain = (stage(jax.grad(lambda x, w=w: loss(x, w)))(0.7) for w in (True, False))
    hcb.barrier_wait()
    np.testing.assert_allclose(out, plain, rtol=1e-6)
    assert len(called) == 8, f"four steps and four again, not {len(called)}"
