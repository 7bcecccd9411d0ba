"""X1, X2: callbacks that have derivatives, as in the guide; test_examples.py has its Bessel function."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from support.helpers import STAGES, like

import hostcb as hcb


def sine(x: Any, **options: Any) -> Any:
    return hcb.pure_callback(lambda x: np.sin(x).astype(x.dtype), like(x), x, **options)


# Custom derivatives ----------------------------------------------------------------------------------------------

V = np.arange(8, dtype=np.float32)


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return sine(x, vmap_method="expand_dims")


@with_jvp.defjvp
def _with_jvp_rule(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    cosine = hcb.pure_callback(np.cos, like(x), x, vmap_method="expand_dims")
    return with_jvp(x), cosine * dx


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return sine(x, vmap_method="sequential")


with_vjp.defvjp(
    lambda x: (with_vjp(x), x),
    lambda x, ct: (ct * hcb.pure_callback(np.cos, like(x), x, vmap_method="sequential"),),
)


@pytest.mark.contract("X1", "X2")
@pytest.mark.parametrize("f", [with_jvp, with_vjp], ids=["custom_jvp", "custom_vjp"])
@STAGES
def test_custom_derivatives_make_it_differentiable(stage: Any, f: Any) -> None:
    np.testing.assert_allclose(stage(jax.grad(f))(1.0), np.cos(1.0), rtol=1e-6)
    np.testing.assert_allclose(stage(jax.vmap(jax.grad(f)))(V), np.cos(V), rtol=1e-6)
    np.testing.assert_allclose(stage(jax.jacrev(f))(V), np.diag(np.cos(V)), rtol=1e-6)
    total = lambda x: lax.scan(lambda c, y: (c + f(y), None), 0.0, x)[0]
    np.testing.assert_allclose(stage(jax.grad(total))(V), np.cos(V), rtol=1e-6)
    np.testing.assert_allclose(stage(jax.grad(jax.checkpoint(total)))(V), np.cos(V), rtol=1e-6)
