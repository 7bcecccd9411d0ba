"""X1, X2, X6: the guide's examples of callbacks that have derivatives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
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


# The Bessel function of the first kind ----------------------------------------------------------------------------

# Bessel's own integral, over one period, where the rule of rectangles is exact to rounding.
ANGLES = (np.arange(64) + 0.5) * (np.pi / 64)


def bessel_on_host(order: Any, z: Any) -> Any:
    order, z = np.broadcast_arrays(np.asarray(order), np.asarray(z))
    phase = order[..., None] * ANGLES - z[..., None].astype(np.float64) * np.sin(ANGLES)
    return np.cos(phase).mean(-1).astype(z.dtype)


@jax.custom_jvp
def bessel(order: Any, z: Any) -> Any:
    order, z = jnp.asarray(order), jnp.asarray(z)
    assert jnp.issubdtype(order.dtype, jnp.integer)
    z = z.astype(jnp.result_type(float, z.dtype))
    shape = jax.ShapeDtypeStruct(jnp.broadcast_shapes(order.shape, z.shape), z.dtype)
    return hcb.pure_callback(bessel_on_host, shape, order, z, vmap_method="broadcast_all")


@bessel.defjvp
def _bessel_jvp(primals: Any, tangents: Any) -> Any:
    order, z = primals
    lower, higher = bessel(order - 1, z), bessel(order + 1, z)
    slope = jnp.where(order == 0, -higher, 0.5 * (lower - higher))
    return bessel(order, z), tangents[1] * slope


# From a table: J0 to J3 at 0, 1 and 2.
TABLE = np.array([[1, 0.7651976866, 0.2238907791], [0, 0.4400505857, 0.5767248078],
                  [0, 0.1149034849, 0.3528340286], [0, 0.0195633540, 0.1289432495]])  # fmt: skip
Z = jnp.arange(3.0)
first = functools.partial(bessel, 1)


@pytest.mark.contract("X6")
def test_bessel_function_in_every_stage() -> None:
    for name, out in {"eager": first(Z), "jit": jax.jit(first)(Z), "vmap": jax.vmap(first)(Z),
                      "jit_vmap": jax.jit(jax.vmap(first))(Z)}.items():  # fmt: skip
        np.testing.assert_allclose(out, TABLE[1], atol=1e-6, err_msg=name)
    orders = jnp.arange(4)
    np.testing.assert_allclose(bessel(orders[:, None], Z[None]), TABLE, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.vmap(bessel, (None, 0)), (0, None))(orders, Z), TABLE, atol=1e-6)


@pytest.mark.contract("X6")
def test_bessel_function_gradient_hessian_and_higher() -> None:
    slope = (TABLE[0] - TABLE[2]) / 2
    np.testing.assert_allclose(jax.grad(first)(2.0), slope[2], atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(first)))(Z), slope, atol=1e-6)
    np.testing.assert_allclose(jax.grad(functools.partial(bessel, 0))(2.0), -TABLE[1, 2], atol=1e-6)
    # From the differential equation: z² J'' + z J' + (z² - 1) J = 0.
    second = -(slope[2] / 2 + (1 - 1 / 4) * TABLE[1, 2])
    np.testing.assert_allclose(jax.hessian(first)(2.0), second, atol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.grad(first)))(2.0), second, atol=1e-5)
    # And its derivative: z² J''' + 3 z J'' + z² J' + 2 z J = 0.
    third = -(6 * second + 4 * slope[2] + 4 * TABLE[1, 2]) / 4
    np.testing.assert_allclose(jax.grad(jax.hessian(first))(2.0), third, atol=1e-5)


@pytest.mark.contract("X6")
def test_bessel_function_without_the_rule_is_refused() -> None:
    plain = lambda z: hcb.pure_callback(bessel_on_host, like(z), 1, z)
    with pytest.raises(ValueError, match="JVP"):
        jax.grad(plain)(2.0)
