"""H6: derivatives and rematerialisation of callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record
from support.transforming import EXAMPLES, power3, seen

import hostcb as hcb


@pytest.mark.contract("H6")
@STAGES
@EXAMPLES
def test_jvp_taps_primals_once(example: Any, stage: Any) -> None:
    record = Record()
    out = stage(lambda x, t: jax.jvp(example(record), (x,), (t,)))(3.0, 0.1)
    np.testing.assert_allclose(out, (27.0, 2.7), rtol=1e-5)
    seen(record, "jvp", (3.0, 9.0))
    assert record.transforms == [()], f"transforms {record.transforms}, but should be empty"


GRADIENTS = {
    "grad": jax.grad,
    "value_and_grad": lambda f: lambda x: jax.value_and_grad(f)(x)[1],
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0)[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](1.0),
    "jacfwd": jax.jacfwd,
}


@pytest.mark.contract("H6")
@STAGES
@EXAMPLES
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_tap_the_forward_pass_alone(gradient: str, example: Any, stage: Any) -> None:
    record = Record()
    out = stage(GRADIENTS[gradient](example(record)))(3.0)
    np.testing.assert_allclose(out, 27.0, rtol=1e-5)
    if gradient == "jacfwd":
        hcb.barrier_wait()
        assert len(record.all) == 1, f"one callback, but {record.values}"
    else:
        seen(record, gradient, (3.0, 9.0))
        assert record.transforms == [()], f"transforms {record.transforms}, but should be empty"


@pytest.mark.contract("H6")
@STAGES
@EXAMPLES
def test_gradient_of_gradient(example: Any, stage: Any) -> None:
    record = Record()
    out = stage(jax.grad(jax.grad(example(record))))(3.0)
    np.testing.assert_allclose(out, 18.0, rtol=1e-5)
    seen(record, "grad of grad", (3.0, 9.0))


@pytest.mark.contract("H6")
@STAGES
def test_hessian_and_third_derivative(stage: Any) -> None:
    record = Record()
    third = jax.grad(jax.grad(jax.grad(power3(record))))
    np.testing.assert_allclose(stage(third)(3.0), 6.0, rtol=1e-5)
    hessian = jax.hessian(lambda x: jnp.sum(power3(record)(x)))
    np.testing.assert_allclose(stage(hessian)(jnp.arange(2.0)), np.diag([0.0, 6.0]), rtol=1e-5)
    hcb.barrier_wait()
    assert len(record.all) == 2, f"one callback in each, but {record.values}"


@pytest.mark.contract("H6")
@STAGES
@EXAMPLES
def test_checkpoint_taps_again_in_the_documented_order(example: Any, stage: Any) -> None:
    record = Record()
    f = example(record)
    out = stage(jax.grad(lambda x: f(jax.checkpoint(f)(x))))(3.0)
    np.testing.assert_allclose(out, 9 * 3.0**8, rtol=1e-5)
    seen(record, "checkpoint", (3.0, 9.0), (27.0, 729.0), (3.0, 9.0))


@pytest.mark.contract("H6")
@STAGES
def test_checkpoint_without_differentiation_taps_once(stage: Any) -> None:
    record = Record()
    np.testing.assert_allclose(stage(jax.checkpoint(power3(record)))(3.0), 27.0)
    seen(record, "checkpoint alone", (3.0, 9.0))


@pytest.mark.contract("H6")
def test_checkpoint_in_a_scan() -> None:
    """The forward pass in order, then each step's rematerialisation, last step first."""
    record = Record()

    def body(carry, i):
        carry, _ = hcb.id_tap(record.tap, (jnp.sin(carry), i))
        return jnp.sin(carry), None

    jax.block_until_ready(jax.grad(lambda x: lax.scan(jax.checkpoint(body), x, jnp.arange(3))[0])(1.0))
    hcb.barrier_wait()
    steps = [int(arg[1]) for arg in record.args]
    assert steps == [0, 1, 2, 2, 1, 0], f"steps {steps}"


@pytest.mark.contract("H6")
@STAGES
def test_custom_jvp_recipe_taps_tangents(stage: Any) -> None:
    record, tangents = Record(), Record()

    @jax.custom_jvp
    def print_tangents(arg):
        return None

    @print_tangents.defjvp
    def _(primals, arg_dots):
        hcb.id_tap(tangents.tap, arg_dots[0])
        return None, None

    def function(x):
        y = x * x
        hcb.id_tap(record.tap, (x, y))
        print_tangents((x, y))
        return y * x

    out = stage(lambda x, t: jax.jvp(function, (x,), (t,)))(3.0, 0.1)
    np.testing.assert_allclose(out, (27.0, 2.7), rtol=1e-5)
    seen(record, "primals", (3.0, 9.0))
    seen(tangents, "tangents", (0.1, 0.6))


def squared(tap: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The square of a number; its rule replaces the tangent by what `tap` makes of it and of the number."""

    @jax.custom_jvp
    def square(x: Any) -> Any:
        return x * x

    @square.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return square(primals[0]), 2 * primals[0] * tap(primals[0], tangents[0])

    return square


def loop_of(step: Callable[[Any], Any], length: int) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda carry, _: (step(carry), None), x, None, length=length)[0]


TRANSPOSED = ("transpose", {})
BOTH = np.array([1, 2], np.float32)
TAPPED_RULES = {
    "jvp": (lambda f: jax.jvp(f, (3.0,), (5.0,))[1], 30.0, [(5.0, ())]),
    "grad": (lambda f: jax.grad(lambda x: 7 * f(x))(3.0), 42.0, [(42.0, (TRANSPOSED,))]),
    "vmap_of_grad": (
        *(lambda f: jax.vmap(jax.grad(f))(jnp.asarray(BOTH)), 2 * BOTH),
        [([2.0, 4.0], (TRANSPOSED, ("batch", {"batch_dims": (0,)})))],
    ),
    # Of (x**2)**2 the outer square comes first.
    "grad_of_scan": (
        *(lambda f: jax.grad(loop_of(f, 2))(3.0), 108.0),
        [(18.0, (TRANSPOSED,)), (108.0, (TRANSPOSED,))],
    ),
    "grad_of_checkpoint": (
        *(lambda f: jax.grad(jax.checkpoint(lambda x: 7 * f(x)))(3.0), 42.0),
        [(42.0, (TRANSPOSED,))],
    ),
}


@pytest.mark.contract("H6")
@pytest.mark.parametrize("name", TAPPED_RULES)
@STAGES
def test_a_tap_in_a_rule_receives_tangents_or_marked_cotangents(name: str, stage: Any) -> None:
    program, derivative, expected = TAPPED_RULES[name]
    record = Record()
    run = stage(lambda: program(squared(lambda _, tangent: hcb.id_tap(record.tap, tangent))))
    np.testing.assert_array_equal(run(), derivative)
    hcb.barrier_wait()
    assert [*zip(record.values, record.transforms, strict=True)] == expected


PAIRS = {
    # The second of the tangents is not used, and what is tapped of it has no cotangent.
    "tangents": (lambda x, dx: (dx, 3 * dx), 0, lambda f: lambda x: 7 * f(x), 42.0, (42.0, 0.0)),
    # The derivative does not depend on the tapped number itself.
    "checkpoint": (lambda x, dx: (x, dx), 1, jax.checkpoint, 6.0, (0.0, 6.0)),
    "scan_of_checkpoints": (lambda x, dx: (x, dx), 1, lambda f: loop_of(jax.checkpoint(f), 1), 6.0, (0.0, 6.0)),
}


@pytest.mark.contract("H6")
@pytest.mark.parametrize("name", PAIRS)
@STAGES
def test_a_tap_of_a_pair_in_a_rule_is_of_the_cotangents(name: str, stage: Any) -> None:
    pair, used, around, derivative, cotangents = PAIRS[name]
    record = Record()
    square = squared(lambda x, dx: hcb.id_tap(record.tap, pair(x, dx))[used])
    np.testing.assert_array_equal(stage(jax.grad(around(square)))(3.0), derivative)
    hcb.barrier_wait()
    assert (record.values, record.transforms) == ([cotangents], [(TRANSPOSED,)])


@pytest.mark.contract("H6")
@pytest.mark.parametrize("batched", [False, True], ids=["", "vmap"])
@STAGES
def test_a_tapped_tangent_beside_an_integer_is_transposed(stage: Any, batched: bool) -> None:
    record = Record()

    @jax.custom_jvp
    def f(n: Any, x: Any) -> Any:
        return 2 * x

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        n, x = primals
        _, tangent = hcb.id_tap(record.tap, (n, tangents[1]))
        return f(n, x), 2 * tangent

    gradient = jax.grad(f, 1)
    if batched:
        gradient = jax.vmap(gradient, (None, 0))
    np.testing.assert_array_equal(
        stage(gradient)(3, jnp.arange(2.0) if batched else 1.0), [2.0, 2.0] if batched else 2.0
    )
    hcb.barrier_wait()
    # An integer's cotangent has no value.
    ((number, slope),) = [each.arg for each in record.all]
    assert number.dtype == jax.dtypes.float0
    np.testing.assert_array_equal(np.broadcast_to(slope, (2,)), [2.0, 2.0])


@pytest.mark.contract("H6", "H7")
@pytest.mark.parametrize("axes", [None, (0, 0), (0, None)], ids=["", "vmap", "vmap of the tangent"])
def test_leaves_without_cotangents_keep_their_places_in_a_tap_of_tangents(axes: Any) -> None:
    """They are before, between and after those with one, and each has another size."""
    record = Record()
    nothing = np.zeros(5, jax.dtypes.float0)

    def tapped(tangent: Any, n: Any) -> Any:
        _, _, one, _, other = hcb.id_tap(record.tap, (n, nothing, tangent, n[..., :2], tangent))
        return one + other

    @jax.custom_jvp
    def square(x: Any, n: Any) -> Any:
        return x * x

    @square.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        tangent = (jax.vmap(tapped, axes) if axes else tapped)(tangents[0], primals[1])
        return square(*primals), primals[0] * tangent

    numbers = jnp.arange(6).reshape(2, 3)
    gradient = jax.jit(jax.grad(lambda x: square(x, numbers).sum()))(jnp.arange(1.0, 3.0))
    assert gradient.tolist() == [2.0, 4.0]
    hcb.barrier_wait()
    (seen_,) = record.all
    # All batch elements together have as many.
    assert [leaf.size if leaf.dtype == jax.dtypes.float0 else leaf.tolist() for leaf in seen_.arg] == [
        *(6, 5, [1.0, 2.0], 4, [1.0, 2.0])
    ]
    assert seen_.transforms == ((("batch", {"batch_dims": (0, 0)}), TRANSPOSED) if axes else (TRANSPOSED,))


@pytest.mark.contract("H6")
@STAGES
def test_an_integer_goes_through_one_tap_of_tangents_into_two(stage: Any) -> None:
    record = Record()

    @jax.custom_jvp
    def f(n: Any, x: Any) -> Any:
        return 2 * x

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        n, x = primals
        number, tangent = hcb.id_tap(record.tap, (n, tangents[1]))
        _, tangent = hcb.id_tap(record.tap, (number, 3 * tangent))
        _, tangent = hcb.id_tap(record.tap, (number, tangent))
        return f(n, x), 2 * tangent

    assert stage(jax.grad(f, 1))(3, 1.0) == 6
    hcb.barrier_wait()
    assert [float(each.arg[1]) for each in record.all] == [2, 2, 6]


@pytest.mark.contract("H6")
@STAGES
def test_custom_vjp_recipe_taps_cotangents(stage: Any) -> None:
    record, cotangents = Record(), Record()

    @jax.custom_vjp
    def print_cotangents(arg):
        return arg

    def backward(_, ct):
        hcb.id_tap(cotangents.tap, ct)
        return (ct,)

    print_cotangents.defvjp(lambda arg: (print_cotangents(arg), None), backward)

    def function(x):
        y = x * x
        hcb.id_tap(record.tap, (x, y))
        x1, y1 = print_cotangents((x, y))
        return y1 * x1

    np.testing.assert_allclose(stage(jax.grad(function))(3.0), 27.0, rtol=1e-5)
    seen(record, "primals", (3.0, 9.0))
    seen(cotangents, "cotangents", (9.0, 3.0))


@pytest.mark.contract("H6")
@STAGES
def test_custom_vjp_taps_in_forward_and_backward_in_a_scan(stage: Any) -> None:
    record = Record()

    @jax.custom_vjp
    def f(x, i):
        return jnp.sin(x)

    def forward(x, i):
        hcb.id_tap(record.labelled("forward"), i)
        return jnp.sin(x), (x, i)

    def backward(residual, ct):
        x, i = residual
        hcb.id_tap(record.labelled("backward"), i)
        return ct * jnp.cos(x), None

    f.defvjp(forward, backward)
    loop = lambda g: lambda x: lax.scan(lambda c, i: (g(c, i), None), x, jnp.arange(3))[0]
    out = helpers.finish(stage(jax.grad(loop(f)))(0.5))
    np.testing.assert_allclose(out, jax.grad(loop(lambda x, i: jnp.sin(x)))(0.5), rtol=1e-5)
    got = [(s.label, int(s.arg)) for s in record.all]
    assert got == [("forward", i) for i in range(3)] + [("backward", i) for i in (2, 1, 0)], f"callbacks {got}"


@pytest.mark.contract("H6")
@STAGES
def test_integer_operands_and_float0_tangents(stage: Any) -> None:
    record = Record()

    def function(x, n):
        x, n, _ = hcb.id_tap(record.tap, (x, n, n > 0))
        return x * n

    out = stage(jax.grad(function))(2.0, 3)
    np.testing.assert_allclose(out, 3.0)
    seen(record, "float0", (2.0, 3, True))
    _, tangent = jax.jvp(lambda n: hcb.id_tap(record.tap, n), (np.int32(3),), (np.zeros((), jax.dtypes.float0),))
    hcb.barrier_wait()
    assert tangent.dtype == jax.dtypes.float0, f"the tangent of an integer is {tangent.dtype}"
    ct = jax.grad(lambda n: hcb.id_tap(record.tap, n) * 1.0, allow_int=True)(np.int32(3))
    hcb.barrier_wait()
    assert ct.dtype == jax.dtypes.float0, f"the cotangent of an integer is {ct.dtype}"


@pytest.mark.contract("H6")
@pytest.mark.parametrize("gradient", ["jvp", "grad", "linearize"])
def test_result_has_its_own_derivative(gradient: str) -> None:
    """`result` replaces the value, so derivatives flow through it and not through what was tapped."""
    record = Record()
    function = lambda x: jnp.sin(hcb.id_tap(record.tap, x * 5, result=x * 2))
    wanted = 2 * np.cos(2 * 0.3)
    out = {
        "jvp": lambda: jax.jvp(function, (0.3,), (1.0,))[1],
        "grad": lambda: jax.grad(function)(0.3),
        "linearize": lambda: jax.linearize(function, 0.3)[1](1.0),
    }[gradient]()
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    seen(record, gradient, 1.5)
