"""X4: what `debug.print` shows under transformations, beside JAX's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from support import helpers
from support.helpers import STAGES, Record
from support.pairwise import in_turns
from support.printed_text import Printed, Show

import hostcb as hcb

pytestmark = pytest.mark.contract("X4")

X = np.arange(8, dtype=np.float32)
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


def sine(x: Any, show: Show, text: str = "x: {}") -> Any:
    show(text, x)
    return jnp.sin(x) * x


def stepping(x: Any, show: Show) -> Any:
    def body(c, i):
        show("step {i} carry {c:.3f}", i=i, c=c)
        return jnp.sin(c), c

    return lax.scan(body, x, jnp.arange(3))[0]


def with_custom_jvp(x: Any, show: Show) -> Any:
    f = jax.custom_jvp(lambda x: sine(x, show, "primal {}"))
    f.defjvp(lambda primals, tangents: (show("rule {} {}", *primals, *tangents), (f(*primals), tangents[0]))[1])
    return f(x)


def with_custom_vjp(x: Any, show: Show) -> Any:
    f = jax.custom_vjp(lambda x: sine(x, show, "primal {}"))
    f.defvjp(lambda x: (show("forward {}", x), (f(x), x))[1], lambda x, ct: (show("back {} {}", x, ct), (ct,))[1])
    return f(x)


FUNCTIONS: dict[str, Callable[[Any, Show], Any]] = {
    "straight": sine,
    "inner_jits": lambda x, show: jax.jit(lambda y: sine(jax.jit(lambda z: sine(z, show))(y), show))(x),
    "while": lambda x, show: lax.while_loop(lambda s: s < x, lambda s: (show("body {}", s), s + 1)[1], x * 0),
    "cond": lambda x, show: lax.cond(x > 1, lambda x: sine(x, show, "true {}"), lambda x: sine(x, show, "false {}"), x),
    "scan": stepping,
    "fori": lambda x, show: lax.fori_loop(0, 3, lambda i, c: (show("i {}", i), c * 2)[1], x),
    "argless": lambda x, show: lax.scan(lambda c, _: (show("step []"), (jnp.sin(c), None))[1], x, None, length=3)[0],
    "custom_jvp": with_custom_jvp,
    "custom_vjp": with_custom_vjp,
}
# What JAX's own is asked to show where it shows too little. It takes what has no operands out of a loop that is
# differentiated and shows it once (#16637); an operand of the loop, even one without elements, keeps it in.
MEASURES: dict[str, Callable[[Any, Show], Any]] = {
    "argless": lambda x, show: lax.scan(
        lambda c, none: (show("step {}", none), (jnp.sin(c), None))[1], x, jnp.zeros((3, 0))
    )[0],
}
V3 = jnp.array([0.0, 1.0, 3.0])
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "plain": lambda f: f(2.0),
    "vmap": lambda f: jax.vmap(f)(V3),
    "vmap_vmap": lambda f: jax.vmap(jax.vmap(f))(jnp.arange(6.0).reshape(2, 3)),
    "vmap_in_axes": lambda f: jax.vmap(jax.vmap(f, 0), 1)(jnp.arange(6.0).reshape(3, 2)),
    "jvp": lambda f: jax.jvp(f, (2.0,), (1.0,)),
    "grad": lambda f: jax.grad(f)(2.0),
    "value_and_grad": lambda f: jax.value_and_grad(f)(2.0),
    "vjp": lambda f: jax.vjp(f, 2.0)[1](1.0),
    "linearize": lambda f: jax.linearize(f, 2.0)[1](1.0),
    "hessian": lambda f: jax.hessian(f)(2.0),
    "vmap_grad": lambda f: jax.vmap(jax.grad(f))(V3),
    "grad_vmap": lambda f: jax.grad(lambda v: jax.vmap(f)(v).sum())(V3),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(2.0),
}
BACKWARD = ("grad", "value_and_grad", "vjp", "hessian", "vmap_grad", "grad_vmap", "checkpoint", "linearize")
FORWARD = ("jvp", "hessian", "linearize")


@pytest.mark.contract("X1")
@in_turns(("function", "transform"), FUNCTIONS, TRANSFORMS, times=5)
def test_shows_as_often_and_what_jax_shows(function: str, transform: str, printed: Printed) -> None:
    if (function == "while" and transform in BACKWARD) or (function == "custom_vjp" and transform in FORWARD):
        pytest.skip("JAX has no such derivative, with or without callbacks")

    # Every second one outside of jit.
    number = [*FUNCTIONS].index(function) + [*TRANSFORMS].index(transform)

    def program(function):
        staged = jax.jit if number % 2 else lambda f: f
        return lambda show: staged(lambda: TRANSFORMS[transform](lambda x: function(x, show)))()

    expected = printed.by(program(MEASURES.get(function, FUNCTIONS[function])), jax)
    got = printed.by(program(FUNCTIONS[function]), hcb)
    assert expected, "the measure should have printed"
    assert sorted(got.splitlines()) == sorted(expected.splitlines()), f"should be:\n{expected}but is:\n{got}"


@STAGES
def test_transposed_means_nothing_is_printed(stage: Any, printed: Printed) -> None:
    f = lambda x: (hcb.debug.print("x: {}", x), 3 * x)[1]
    assert float(stage(lambda ct: jax.linear_transpose(f, 1.0)(ct)[0])(2.0)) == 6.0
    assert printed() == ""


@STAGES
@ORDERED
def test_vmap_unrolls_in_the_order_of_the_batch(stage: Any, ordered: bool, printed: Printed) -> None:
    """Nested: the last axis of the mapped functions varies slowest, as with JAX's own (#29829)."""
    f = lambda x: hcb.debug.print("{}", x, ordered=ordered)
    stage(jax.vmap(f))(jnp.arange(5))
    got = printed().split()
    assert (got if ordered or stage is not jax.jit else sorted(got)) == ["0", "1", "2", "3", "4"]
    stage(jax.vmap(jax.vmap(f)))(jnp.arange(6).reshape(2, 3))
    got, expected = printed().split(), ["0", "3", "1", "4", "2", "5"]
    assert got == expected if ordered or stage is not jax.jit else sorted(got) == sorted(expected), f"printed {got}"


@STAGES
def test_ordered_vmap_of_scan_goes_step_by_step(stage: Any, printed: Printed) -> None:
    def f(x):
        lax.scan(lambda c, i: (hcb.debug.print("{}", 10 * i + c, ordered=True), (c, None))[1], x, jnp.arange(3))

    stage(jax.vmap(f))(jnp.arange(3))
    assert printed().split() == ["0", "1", "2", "10", "11", "12", "20", "21", "22"]


@STAGES
@pytest.mark.parametrize("size", [0, 1, 16, 17, 40])
def test_vmap_of_any_size_calls_once_for_each_element(stage: Any, size: int) -> None:
    record = Record()
    f = lambda x, y: hcb.debug.callback(lambda x, *, y: record.add((x, y)), x, y=y, ordered=True)
    stage(jax.vmap(f, (0, None)))(jnp.arange(size), 7)
    jax.effects_barrier()
    assert record.values == [(n, 7) for n in range(size)]


@STAGES
@ORDERED
def test_while_condition_with_a_batched_predicate(stage: Any, ordered: bool) -> None:
    """Guards against vmap_while_cond: JAX's own ordered callback makes the result [3, 3]."""
    record, measure = Record(), Record()

    def f(n, callback):
        def condition(s):
            callback(s)
            return s < n

        return lax.while_loop(condition, lambda s: s + 1, 0.0)

    run = lambda callback: stage(jax.vmap(lambda n: f(n, callback)))(np.array([1.0, 3.0], np.float32))
    out = run(lambda s: hcb.debug.callback(record.add, s, ordered=ordered))
    helpers.equal(out, np.array([1, 3], np.float32), "result")
    run(lambda s: jax.debug.callback(measure.add, s))
    jax.effects_barrier()
    if ordered:
        assert record.values == [0, 0, 1, 1, 1, 2, 1, 3], "each batch element at each step, a finished one unchanged"
    else:
        assert sorted(record.values) == sorted(measure.values), "as often as JAX runs the condition"


NAMES = jax.checkpoint_policies
POLICIES = {
    "default": (None, 2),
    "everything_saveable": (NAMES.everything_saveable, 1),
    "nothing_saveable": (NAMES.nothing_saveable, 2),
    "dots_saveable": (NAMES.dots_saveable, 2),
    "save_any_names_but_these": (NAMES.save_any_names_but_these("other"), 2),
    "save_only_these_names": (NAMES.save_only_these_names("y"), 2),
    "save_anything_except_these_names": (NAMES.save_anything_except_these_names("other"), 1),
}


@STAGES
@ORDERED
@pytest.mark.parametrize("policy", POLICIES)
def test_remat_policies(stage: Any, ordered: bool, policy: str, printed: Printed) -> None:
    def program(show):
        @functools.partial(jax.checkpoint, policy=POLICIES[policy][0])
        def f(x):
            y = checkpoint_name(jnp.sin(x), "y")
            show("y: {:.1f}", y, ordered=ordered)
            return jnp.sin(y)

        return stage(jax.grad(f))(0.0)

    expected = printed.by(program, jax)
    assert expected == "y: 0.0\n" * POLICIES[policy][1], "the measure itself"
    assert printed.by(program, hcb) == expected


@STAGES
def test_remat_in_scan_shows_both_passes(stage: Any) -> None:
    """Guards against scan_remat_debug: one of the two passes was lost."""
    record = Record()

    def body(c, i):
        hcb.debug.callback(record.add, i)
        return jnp.sin(c), None

    stage(jax.grad(lambda x: lax.scan(jax.checkpoint(body), x, jnp.arange(5))[0]))(1.0)
    jax.effects_barrier()
    assert sorted(record.values) == sorted([*range(5)] * 2)
