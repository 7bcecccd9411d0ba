"""X1, X3: what `io_callback` does under vmap, derivatives and checkpoints, and where it is refused there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.counting import INT, ORDERED, SCALAR, Counter, X, values
from support.helpers import STAGES, Record

import hostcb as hcb


@pytest.mark.contract("X1", "X3")
@STAGES
def test_unordered_is_batched_with_one_call_for_each_element(stage: Any) -> None:
    """Also where the result is unused: JAX's once became pure under vmap and was dropped (#20725)."""
    counter = Counter()
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    out = stage(jax.vmap(lambda x: hcb.io_callback(counter, INT, x)))(x)
    assert sorted(values(counter.record)) == x.tolist(), f"calls: {counter.record.values}"
    assert sorted(out.tolist()) == [0, 1, 2], f"results: {out}"
    unused = Counter()
    f = lambda x, y: (hcb.io_callback(unused, INT, x + y), x)[1]
    jax.block_until_ready(stage(jax.vmap(jax.vmap(f, (0, None)), (1, None), 1))(x, 10.0))
    assert sorted(values(unused.record)) == [10, 11, 12, 13, 14, 15], f"calls: {unused.record.values}"


@pytest.mark.contract("X3")
@STAGES
def test_unbatched_under_vmap_runs_once_not_once_an_element(stage: Any) -> None:
    counter = Counter()
    stage(jax.vmap(lambda x: (hcb.io_callback(counter.silent, None, 1.0), x)[1]))(X)
    assert values(counter.record) == [1.0], f"calls: {counter.record.values}"


@pytest.mark.contract("X1", "X3")
@STAGES
def test_ordered_is_not_batched(stage: Any) -> None:
    counter = Counter()
    with pytest.raises(ValueError, match="Cannot `vmap` ordered IO callback"):
        stage(jax.vmap(lambda x: hcb.io_callback(counter, INT, x, ordered=True)))(X)
    assert values(counter.record) == [], "refused before anything runs"


@pytest.mark.contract("X3")
def test_vmap_of_cond_with_a_batched_predicate_is_refused() -> None:
    counter = Counter()
    f = lambda p, x: lax.cond(p, lambda: hcb.io_callback(counter, INT, x), lambda: jnp.int32(0))
    with pytest.raises(NotImplementedError, match="IO effect not supported in vmap-of-cond"):
        jax.vmap(f)(X > 2, X)
    out = jax.jit(jax.vmap(f, (None, 0)))(jnp.bool_(True), X)
    assert sorted(np.asarray(out).tolist()) == list(range(8)), "with one predicate for all it is fine"
    assert sorted(values(counter.record)) == X.tolist(), f"calls: {counter.record.values}"


@pytest.mark.contract("X3")
@pytest.mark.parametrize("where", ["body", "condition"])
def test_vmap_of_while_with_a_batched_predicate_is_refused(where: str) -> None:
    """Guards against #20628: with one predicate for all batch elements it has to work."""
    counter = Counter()

    def loop(n, x):
        def emit(state):
            return (hcb.io_callback(counter.silent, None, state[1]), state)[1]

        condition = lambda state: (emit(state) if where == "condition" else state)[0] < n
        body = lambda state: tuple(leaf + 1 for leaf in (emit(state) if where == "body" else state))
        return lax.while_loop(condition, body, (0, x))[1]

    with pytest.raises(NotImplementedError, match=r"IO effects? not supported in while_loop with batched predicate"):
        jax.vmap(loop)(np.array([1, 2]), X[:2])
    helpers.equal(jax.jit(jax.vmap(loop, (None, 0)))(2, 10 * X[:2]), 10 * X[:2] + 2, "the loop's result")
    expected = [0, 1, 10, 11] if where == "body" else [0, 1, 2, 10, 11, 12]
    assert sorted(values(counter.record)) == expected, f"calls: {counter.record.values}"


@pytest.mark.contract("X3")
def test_vmap_of_scan_runs_every_step_of_every_element() -> None:
    counter = Counter()
    f = lambda x: lax.scan(lambda c, i: (c + 1, hcb.io_callback(counter, INT, 10 * x + i)), x, jnp.arange(3.0))[0]
    helpers.equal(jax.jit(jax.vmap(f))(X[:3]), X[:3] + 3, "carry")
    assert sorted(values(counter.record)) == [10 * x + i for x in range(3) for i in range(3)]


@pytest.mark.contract("X1", "X3")
@ORDERED
@STAGES
def test_differentiated_arguments_are_refused(stage: Any, ordered: bool) -> None:
    counter = Counter()
    f = stage(lambda x: hcb.io_callback(counter, SCALAR, x, ordered=ordered))
    for transform in (lambda: jax.jvp(f, (1.0,), (1.0,)), lambda: jax.grad(f)(1.0), lambda: jax.vjp(f, 1.0),
                      lambda: jax.linearize(f, 1.0), lambda: jax.hessian(f)(1.0)):  # fmt: skip
        with pytest.raises(ValueError, match=r"IO callbacks do not support JVP.*jax\.custom_jvp"):
            transform()
    with pytest.raises(ValueError, match="IO callbacks do not support transpose"):
        jax.linear_transpose(f, 1.0)(1.0)
    assert values(counter.record) == [], "refused before anything runs"


@pytest.mark.contract("X1", "X3")
@ORDERED
@STAGES
def test_other_arguments_are_called_once(stage: Any, ordered: bool) -> None:
    counter = Counter()

    def f(x, n):
        hcb.io_callback(counter.silent, None, ordered=ordered)
        hcb.io_callback(counter.silent, None, n, ordered=ordered)
        hcb.io_callback(counter, INT, lax.stop_gradient(x), ordered=ordered)
        return x**2

    for transform in (jax.grad(f), jax.value_and_grad(f), lambda x, n: jax.jvp(lambda x: f(x, n), (x,), (x,)),
                      lambda x, n: jax.vjp(lambda x: f(x, n), x)[0], jax.hessian(f)):  # fmt: skip
        counter.record.all.clear()
        stage(transform)(3.0, 2)
        got = values(counter.record)
        assert sorted(got, key=str) == [2, 3.0, None], f"calls: {got}"
        assert not ordered or got == [None, 2, 3.0], f"order: {got}"


@pytest.mark.contract("X3")
@ORDERED
@STAGES
def test_a_checkpoint_that_is_differentiated_is_refused(stage: Any, ordered: bool) -> None:
    counter = Counter()
    f = jax.checkpoint(lambda x: (hcb.io_callback(counter.silent, None, ordered=ordered), jnp.sin(x))[1])
    with pytest.raises(NotImplementedError, match=r"Effects not supported in .* of `checkpoint`"):
        stage(jax.grad(f))(1.0)
    assert values(counter.record) == [], "refused before anything runs"
    np.testing.assert_allclose(stage(f)(1.0), np.sin(1.0), rtol=1e-6)
    assert len(values(counter.record)) == 1, "a checkpoint that nobody differentiates runs it once"


@pytest.mark.contract("X3")
@ORDERED
def test_in_custom_derivatives(ordered: bool) -> None:
    record = Record()
    tell = lambda label: hcb.io_callback(lambda: record.add(label), None, ordered=ordered)

    @jax.custom_jvp
    def one(x):
        return (tell("primal"), x**2)[1]

    @jax.custom_vjp
    def two(x):
        return (tell("primal"), x**2)[1]

    one.defjvp(lambda primals, tangents: (tell("rule"), (primals[0] ** 2, 2 * primals[0] * tangents[0]))[1])
    two.defvjp(lambda x: (tell("forward"), (x**2, x))[1], lambda x, ct: (tell("backward"), (2 * x * ct,))[1])
    for f, expected in ((one, ["rule"]), (two, ["forward", "backward"])):
        for stage in (lambda f: f, jax.jit):
            record.all.clear()
            assert float(stage(f)(3.0)) == 9.0
            assert values(record) == ["primal"], f"calls without derivative: {record.values}"
            record.all.clear()
            assert float(stage(jax.grad(f))(3.0)) == 6.0
            assert values(record) == expected, f"calls under grad: {record.values}"


@pytest.mark.contract("X3")
@ORDERED
def test_forward_through_an_implicitly_differentiated_solver(ordered: bool) -> None:
    """Guards against custom_root_io: refused by JAX's own up to 0.11."""
    counter = Counter()

    def solve(f, x):
        step = lambda i, x: (hcb.io_callback(counter.silent, None, i, ordered=ordered), x - f(x) / (2 * x))[1]
        return lax.fori_loop(0, 4, step, x)

    root = lambda a: lax.custom_root(lambda x: x * x - a, a, solve, lambda g, y: y / g(1.0))
    np.testing.assert_allclose(jax.jit(root)(2.0), np.sqrt(2), rtol=1e-5)
    assert sorted(values(counter.record)) == [0, 1, 2, 3]
