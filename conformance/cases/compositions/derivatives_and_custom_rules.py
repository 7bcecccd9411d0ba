"""Callbacks of several kinds in derivatives of loops, of rules that call back, and of derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..harness.case import Case, case
from .composing import FLOAT0, TRANSPOSED, Composition, batched, ran

INTEGER = np.int32(7)
"""An operand beside a tangent. In reverse mode a tap gets its cotangent, of type float0."""


@case("jit", "call", "H4 H5 H6")
def fuzz_grad_checkpoint_call(case: Case) -> None:
    """In the derivative of a checkpoint in a scan a call runs once a step, since its result is kept; taps run again."""
    run = Composition(case)

    def program(x: Any) -> Any:
        integer = x.astype(jnp.int32)

        @jax.checkpoint
        def product(y: Any) -> Any:
            factor = run("call", "factor", lax.stop_gradient(y), integer)
            return run("debug_callback_ordered", "product", run("id_tap", "tap", y) * factor)

        return jax.value_and_grad(lambda y: lax.scan(lambda z, _: (product(z), None), y, None, length=2)[0])(x)

    first = [ran("tap", 2.0), ran("product", 6.0)]
    second = [ran("tap", 6.0), ran("product", 42.0)]
    expected = [ran("factor", 2.0, 2), *first, ran("factor", 6.0, 2), *second, *second, *first]
    run.check(jax.jit(program), 2.0, [42.0, 21.0], expected)


@case("jit", "call", "H4 H5 H6")
def fuzz_grad_of_grad(case: Case) -> None:
    """A derivative of a derivative runs the callbacks of functions and of their rules once each, in order."""
    run = Composition(case)

    @jax.custom_jvp
    def increased(y: Any) -> Any:
        run("call", "increased", lax.stop_gradient(y))
        return y + 1

    @increased.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        value = increased(*primals)
        run("id_tap", "at", *primals)
        return value, run("id_tap", "tangent", *tangents, INTEGER)

    @jax.custom_vjp
    def same(y: Any) -> Any:
        run("call", "same", lax.stop_gradient(y))
        return y

    def backward(y: Any, slope: Any) -> Any:
        slope = run("id_tap", "cotangent", y * slope)
        run("call", "rule", lax.stop_gradient(y))
        return (slope,)

    same.defvjp(lambda y: (same(y), y), backward)

    def slope(y: Any) -> Any:
        product = jax.grad(lambda z: increased(run("id_tap", "operand", z) * z) * same(z))
        return run("id_tap", "slope", product(y))

    expected = [
        *(ran("operand", 2.0), ran("increased", 4.0), ran("at", 4.0), ran("at", 4.0), ran("same", 2.0)),
        *(ran("cotangent", 10.0), ran("rule", 2.0), ran("tangent", 2.0, FLOAT0, transforms=TRANSPOSED)),
        ran("slope", 18.0),
        *(ran("cotangent", 8.0), ran("rule", 2.0), ran("tangent", 2.0, FLOAT0, transforms=TRANSPOSED)),
    ]
    run.check(jax.jit(jax.value_and_grad(slope)), 2.0, [18.0, 25.0], expected)


@case("jit", "io_callback", "H4")
def fuzz_grad_scan_io(case: Case) -> None:
    """An unused io_callback of what is carried and not differentiated runs at each step of a differentiated scan."""
    run = Composition(case)

    def step(carry: Any, _: Any) -> Any:
        y, count = carry
        run("io_callback", "unordered", count)
        run("io_callback_ordered", "ordered", count)
        return (y * y, count + 1), None

    program = jax.value_and_grad(lambda x: lax.scan(step, (x, jnp.int32(3)), None, length=3)[0][0])
    expected = [ran(name, count) for count in (3, 4, 5) for name in ("unordered", "ordered")]
    run.check(jax.jit(program), 2.0, [256.0, 1024.0], expected)


@case("jit", "call", "H4 H5 H6")
def fuzz_grad_scan_rules(case: Case) -> None:
    """The derivative of a scan runs the callbacks of custom_vjp and custom_jvp rules at each step, in order."""
    run = Composition(case)

    @jax.custom_vjp
    def double(y: Any) -> Any:
        return 2 * run("id_tap", "double", y)

    def backward(y: Any, slope: Any) -> Any:
        run("io_callback_ordered", "rule", slope, y)
        return (3 * run("id_tap", "cotangent", slope),)

    double.defvjp(lambda y: (double(y), y), backward)

    @jax.custom_jvp
    def increased(y: Any) -> Any:
        return y + 1

    @increased.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        run("debug_callback", "at", *primals)
        return increased(*primals), -run("id_tap", "tangent", *tangents, INTEGER)

    def step(total: Any, y: Any) -> Any:
        doubled = double(total + y)
        return increased(doubled), doubled

    def objective(x: Any) -> Any:
        last, doubled = lax.scan(step, jnp.float32(1), x)
        return last + 2 * jnp.sum(doubled)

    def program(x: Any) -> Any:
        value, slopes = jax.value_and_grad(objective)(x)
        return run("call", "slopes", slopes, value)

    expected = [
        *(ran("double", 2.0), ran("at", 4.0), ran("double", 7.0), ran("at", 14.0)),
        ran("tangent", -1.0, FLOAT0, transforms=TRANSPOSED),
        *(ran("rule", 1.0, 7.0), ran("cotangent", 1.0)),
        ran("tangent", -3.0, FLOAT0, transforms=TRANSPOSED),
        *(ran("rule", -1.0, 2.0), ran("cotangent", -1.0)),
        ran("slopes", [-3.0, 3.0], 51.0),
    ]
    run.check(jax.jit(program), [1.0, 2.0], [[-2.0, 4.0]], expected)


@case("jit", "id_tap", "H4 H5 H6")
def fuzz_jvp_of_grad(case: Case) -> None:
    """In forward mode of reverse mode a rule's tap sees each tangent and cotangent, which has a tangent, once."""
    run = Composition(case)

    @jax.custom_jvp
    def shown(y: Any) -> Any:
        return run("debug_print_ordered", "shown", y)

    @shown.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return shown(*primals), run("id_tap", "tangent", *tangents, INTEGER)

    def slope(y: Any) -> Any:
        return run("id_tap", "slope", jax.grad(lambda z: 3 * shown(run("id_print", "print", z) * z))(y))

    def program(x: Any) -> Any:
        value, tangent = jax.jvp(slope, (x,), (x,))
        return run("id_print", "sum", value + tangent)

    expected = [
        *(ran("print", 2.0), ran("shown", 4.0), ran("tangent", 8.0, INTEGER)),
        *(ran("tangent", 3.0, FLOAT0, transforms=TRANSPOSED), ran("slope", 12.0), ran("sum", 24.0)),
    ]
    run.check(jax.jit(program), 2.0, [24.0], expected)


@case("jit", "call", "H4 H5 H6 H8")
def fuzz_jvp_while_rules(case: Case) -> None:
    """In forward mode a while_loop in a vmap runs the tap of a rule's tangent once at each step."""
    run = Composition(case)

    @jax.custom_jvp
    def double(y: Any) -> Any:
        run("call", "double", lax.stop_gradient(y), vmap_method="sequential")
        return y + y

    @double.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        run("debug_callback", "at", *primals)
        return double(*primals), 3 * run("id_tap", "tangent", *tangents)

    def objective(y: Any) -> Any:
        body = lambda carry: (carry[0] + 1, double(run("id_tap", "body", carry[1])))
        start = jnp.int32(0), run("id_print", "print", y)
        return lax.while_loop(lambda carry: carry[0] < 2, body, start)[1]

    def element(y: Any) -> Any:
        value, slope = jax.jvp(objective, (y,), (y,))
        return run("id_tap", "both", value, slope), slope

    expected = [
        ran("print", [1.0, 2.0], transforms=batched(0)),
        ran("body", [1.0, 2.0], transforms=batched(0)),
        *(ran("double", 1.0), ran("double", 2.0), ran("at", 1.0), ran("at", 2.0)),
        ran("tangent", [1.0, 2.0], transforms=batched(0)),
        ran("body", [2.0, 4.0], transforms=batched(0)),
        *(ran("double", 2.0), ran("double", 4.0), ran("at", 2.0), ran("at", 4.0)),
        ran("tangent", [3.0, 6.0], transforms=batched(0)),
        ran("both", [4.0, 8.0], [9.0, 18.0], transforms=batched(0, 0)),
    ]
    run.check(jax.jit(jax.vmap(element)), [1.0, 2.0], [[4.0, 8.0], [9.0, 18.0]], expected)


@case("jit", "id_tap", "H4 H6")
def fuzz_rule_without_cotangent(case: Case) -> None:
    """The callbacks of a custom_vjp function run; those of its rule may be left out, since its cotangent is zero."""
    run = Composition(case)

    @jax.custom_vjp
    def same(y: Any) -> Any:
        return run("id_tap", "function", y)

    same.defvjp(lambda y: (same(y), y), lambda y, slope: (y * run("id_tap", "rule", slope),))

    def program(x: Any) -> Any:
        def objective(y: Any) -> Any:
            def step(z: Any, _: Any) -> Any:
                same(y)
                return z, None

            return lax.scan(step, x, None, length=2)[0]

        return jax.value_and_grad(objective)(x)

    functions, rules = [ran("function", 2.0)] * 2, [ran("rule", 0.0)] * 2
    run.check(jax.jit(program), 2.0, [2.0, 0.0], functions, [*functions, *rules])


@case("jit", "debug_callback_ordered", "H4 H5 H6")
def fuzz_slopes_in_vmap(case: Case) -> None:
    """A callback of a cotangent in a vmap runs for each batch element.

    It may run once for all where JAX knows the cotangent to be zero or one, and leaves it unbatched.
    """
    run = Composition(case)

    def program(x: Any) -> Any:
        def element(y: Any) -> Any:
            zero, one = jax.grad(lambda z: y)(x[0]), jax.grad(lambda z: z + y)(x[0])
            run("debug_callback_ordered", "zero", zero)
            run("debug_callback_ordered", "one", one)
            slope = run("debug_callback_ordered", "slope", jax.grad(lambda z: z * y)(x[0]))
            return run("pure_callback", "pure", zero, vmap_method="sequential"), slope

        return jax.vmap(element)(x)

    zero, one, others = ran("zero", 0.0), ran("one", 1.0), [ran("slope", 2.0), ran("slope", 3.0), ran("pure", 0.0)]
    results = [[1.0, 1.0], [2.0, 3.0]]
    run.check(jax.jit(program), [2.0, 3.0], results, [zero, one, *others], [zero, zero, one, one, *others])


@case("jit", "debug_callback_ordered", "H4 H5 H6")
def fuzz_tangent_of_branch(case: Case) -> None:
    """A callback of a tangent runs once, since no branch that runs has a batch.

    It may run for each batch element, since a branch that does not run batches the tangent.
    """
    run = Composition(case)

    def program(x: Any) -> Any:
        def element(y: Any) -> Any:
            function = lambda z: lax.cond(x[0] > 0, lambda z: x[0], lambda z: z, z)
            value, tangent = jax.jvp(function, (x[0],), (y,))
            run("debug_callback_ordered", "value", value)
            return run("debug_callback_ordered", "tangent", tangent)

        return jax.vmap(element)(x)

    value, tangent = ran("value", 2.0), ran("tangent", 0.0)
    run.check(jax.jit(program), [2.0, 3.0], [[0.0, 0.0]], [value, tangent], [value, tangent, tangent])
