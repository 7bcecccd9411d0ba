"""H6 to H8: derivatives, vectorisation and rematerialisation of callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Record
from jax import lax

import hostcb as hcb


def power3(record: Record) -> Callable[[Any], Any]:
    """The documentation's running example: x cubed, and a tap of x and its square."""

    def function(x):
        y = x * x
        x, y = hcb.id_tap(record.tap, (x, y))
        return y * x

    return function


def power3_unused(record: Record) -> Callable[[Any], Any]:
    """As in the documentation, where nobody uses what the tap returns."""

    def function(x):
        y = x * x
        hcb.id_tap(record.tap, (x, y))
        return y * x

    return function


EXAMPLES = pytest.mark.parametrize("example", [power3, power3_unused])
STAGING = pytest.mark.parametrize("stage", [lambda f: f, jax.jit], ids=["eager", "jit"])


def seen(record: Record, what: str, *expected: Any) -> None:
    __tracebackhide__ = True
    hcb.barrier_wait()
    assert len(record.all) == len(expected), f"{what}: callbacks {record.values}, but should be {list(expected)}"
    for got, want in zip(record.values, expected, strict=True):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, err_msg=what), got, want)


@STAGING
@EXAMPLES
def test_h6_jvp_taps_primals_once(example: Any, stage: Any) -> None:
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


@STAGING
@EXAMPLES
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_h6_gradients_tap_the_forward_pass_alone(gradient: str, example: Any, stage: Any) -> None:
    record = Record()
    out = stage(GRADIENTS[gradient](example(record)))(3.0)
    np.testing.assert_allclose(out, 27.0, rtol=1e-5)
    if gradient == "jacfwd":
        hcb.barrier_wait()
        assert len(record.all) == 1, f"one callback, but {record.values}"
    else:
        seen(record, gradient, (3.0, 9.0))
        assert record.transforms == [()], f"transforms {record.transforms}, but should be empty"


@STAGING
@EXAMPLES
def test_h6_gradient_of_gradient(example: Any, stage: Any) -> None:
    record = Record()
    out = stage(jax.grad(jax.grad(example(record))))(3.0)
    np.testing.assert_allclose(out, 18.0, rtol=1e-5)
    seen(record, "grad of grad", (3.0, 9.0))


@STAGING
def test_h6_hessian_and_third_derivative(stage: Any) -> None:
    record = Record()
    third = jax.grad(jax.grad(jax.grad(power3(record))))
    np.testing.assert_allclose(stage(third)(3.0), 6.0, rtol=1e-5)
    hessian = jax.hessian(lambda x: jnp.sum(power3(record)(x)))
    np.testing.assert_allclose(stage(hessian)(jnp.arange(2.0)), np.diag([0.0, 6.0]), rtol=1e-5)
    hcb.barrier_wait()
    assert len(record.all) == 2, f"one callback in each, but {record.values}"


@STAGING
@EXAMPLES
def test_h6_checkpoint_taps_again_in_the_documented_order(example: Any, stage: Any) -> None:
    record = Record()
    f = example(record)
    out = stage(jax.grad(lambda x: f(jax.checkpoint(f)(x))))(3.0)
    np.testing.assert_allclose(out, 9 * 3.0**8, rtol=1e-5)
    seen(record, "checkpoint", (3.0, 9.0), (27.0, 729.0), (3.0, 9.0))


@STAGING
def test_h6_checkpoint_without_differentiation_taps_once(stage: Any) -> None:
    record = Record()
    np.testing.assert_allclose(stage(jax.checkpoint(power3(record)))(3.0), 27.0)
    seen(record, "checkpoint alone", (3.0, 9.0))


def test_h6_checkpoint_in_a_scan() -> None:
    """The forward pass in order, then each step's rematerialisation, last step first."""
    record = Record()

    def body(carry, i):
        carry, _ = hcb.id_tap(record.tap, (jnp.sin(carry), i))
        return jnp.sin(carry), None

    jax.block_until_ready(jax.grad(lambda x: lax.scan(jax.checkpoint(body), x, jnp.arange(3))[0])(1.0))
    hcb.barrier_wait()
    steps = [int(arg[1]) for arg in record.args]
    assert steps == [0, 1, 2, 2, 1, 0], f"steps {steps}"


@STAGING
def test_h6_custom_jvp_recipe_taps_tangents(stage: Any) -> None:
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


@STAGING
def test_h6_custom_jvp_identity_that_taps_tangents_under_grad(stage: Any) -> None:
    """Under grad the tangent tap is transposed: one callback with the cotangent, and the derivative is right."""
    tangents = Record()

    @jax.custom_jvp
    def identity(x):
        return x

    @identity.defjvp
    def _(primals, arg_dots):
        return primals[0], hcb.id_tap(tangents.tap, arg_dots[0])

    out = stage(lambda x, t: jax.jvp(lambda x: identity(x * x), (x,), (t,)))(3.0, 0.5)
    np.testing.assert_allclose(out, (9.0, 3.0), rtol=1e-5)
    seen(tangents, "tangents", 3.0)
    np.testing.assert_allclose(stage(jax.grad(lambda x: jnp.sin(identity(x * x))))(3.0), 6 * np.cos(9.0), rtol=1e-5)


@STAGING
def test_h6_custom_vjp_recipe_taps_cotangents(stage: Any) -> None:
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


@STAGING
def test_h6_custom_vjp_taps_in_forward_and_backward_in_a_scan(stage: Any) -> None:
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


@STAGING
def test_h6_integer_operands_and_float0_tangents(stage: Any) -> None:
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


def test_h6_tapping_a_float0_value() -> None:
    record = Record()
    zeros = np.zeros((2,), jax.dtypes.float0)
    hcb.id_tap(record.tap, (1.0, zeros))
    hcb.barrier_wait()
    assert len(record.all) == 1
    assert np.shape(record.args[0][1]) == (2,), "a float0 leaf keeps its place and its shape"


@pytest.mark.parametrize("gradient", ["jvp", "grad", "linearize"])
def test_h6_result_has_its_own_derivative(gradient: str) -> None:
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


CONTROL = {
    "cond": lambda tap: lambda x: lax.cond(x > 0, lambda y: jnp.sin(tap(y)), lambda y: y, x),
    "while": lambda tap: lambda x: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(tap(s[1]))), (0, x))[1],
    "scan": lambda tap: lambda x: lax.scan(lambda c, _: (jnp.sin(tap(c)), None), x, None, length=3)[0],
    "jit": lambda tap: jax.jit(lambda x: jnp.sin(tap(x))),
    "named_call": lambda tap: jax.named_call(lambda x: jnp.sin(tap(x)), name="n"),
    "custom_jvp_caller": lambda tap: lambda x: jax.nn.relu(jnp.sin(tap(x))),
}  # fmt: skip


@pytest.mark.parametrize("derivative", ["jvp", "grad", "vmap_grad", "grad_vmap", "jit_grad"])
@pytest.mark.parametrize("construct", CONTROL)
def test_h6_h7_derivatives_through_control_flow(construct: str, derivative: str) -> None:
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


def batch(*entries: Any) -> tuple[Any, ...]:
    return tuple(("batch", {"batch_dims": dims}) for dims in entries)


@STAGING
@EXAMPLES
def test_h7_vmap_of_the_example(example: Any, stage: Any) -> None:
    record = Record()
    out = stage(jax.vmap(example(record)))(np.array([2.0, 3.0], np.float32))
    np.testing.assert_allclose(out, [8.0, 27.0])
    seen(record, "vmap", ([2.0, 3.0], [4.0, 9.0]))
    assert record.transforms == [batch((0, 0))], f"transforms {record.transforms}"
    assert isinstance(record.transforms[0], tuple), "transforms is a tuple"


@STAGING
@pytest.mark.parametrize(
    ("in_axes", "shapes", "dims"),
    [
        ((0, None), ((3, 2), (4,)), (0, None)),
        ((None, 0), ((2,), (3, 4)), (None, 0)),
        ((1, 0), ((2, 3), (3, 4)), (1, 0)),
        ((0, 1), ((3,), (4, 3)), (0, 1)),
        ((-1, 2), ((2, 3), (4, 5, 3)), (1, 2)),
    ],
    ids=str,
)
def test_h7_batch_dims(in_axes: Any, shapes: Any, dims: Any, stage: Any) -> None:
    """The operand comes as it is, and `batch_dims` says where each batch axis lies."""
    record = Record()
    args = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    out = stage(jax.vmap(lambda x, y: hcb.id_tap(record.tap, (x, y))[0].sum(), in_axes))(*args)
    wanted = jax.vmap(lambda x, y: x.sum(), in_axes)(*args)
    np.testing.assert_allclose(helpers.finish(out), wanted)
    assert record.transforms == [batch(dims)], f"transforms {record.transforms}, but should be {batch(dims)}"
    for got, want in zip(record.args[0], args, strict=True):
        helpers.equal(got, want, "batched operand")


@STAGING
def test_h7_nested_vmaps_add_an_entry_each(stage: Any) -> None:
    record = Record()
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32)
    inner = jax.vmap(lambda a, b: sum(hcb.id_tap(record.tap, (a, b))), (0, None))
    out = stage(jax.vmap(inner, (None, 0)))(x[0], y)
    np.testing.assert_allclose(helpers.finish(out), x[0][None, :] + y[:, None])
    assert record.transforms == [batch((0, None), (None, 0))], f"transforms {record.transforms}"
    for got, want in zip(record.args[0], (x[0], y), strict=True):
        helpers.equal(got, want, "batched operand")


def test_h7_nothing_batched_is_not_transformed() -> None:
    record = Record()
    jax.block_until_ready(jax.vmap(lambda x: (hcb.id_tap(record.tap, 5.0), x)[1])(jnp.arange(3.0)))
    hcb.barrier_wait()
    assert record.values == [5.0]
    assert record.transforms == [()], f"transforms {record.transforms}"


def test_h7_vmap_of_grad_and_grad_of_vmap() -> None:
    record = Record()
    x = np.array([2.0, 3.0], np.float32)
    np.testing.assert_allclose(jax.vmap(jax.grad(power3(record)))(x), 3 * x**2)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(jax.vmap(power3(record))(x)))(x), 3 * x**2)
    seen(record, "both", *[([2.0, 3.0], [4.0, 9.0])] * 2)
    assert record.transforms == [batch((0, 0))] * 2, f"transforms {record.transforms}"


def test_h7_vmap_of_cond_runs_both_branches() -> None:
    record = Record()

    def branch(label: str, factor: float) -> Any:
        return lambda x: hcb.id_tap(record.labelled(label), x) * factor

    out = jax.vmap(lambda x: lax.cond(x > 1, branch("true", 2.0), branch("false", 3.0), x))(jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(helpers.finish(out), [0.0, 3.0, 4.0])
    assert sorted(record.labels) == ["false", "true"], f"branches {record.labels}"
    assert record.transforms == [batch((0,))] * 2, f"transforms {record.transforms}"


def test_h7_vmap_of_cond_with_one_predicate_for_all() -> None:
    record = Record()
    function = lambda p, x: lax.cond(p, lambda y: hcb.id_tap(record.tap, y), lambda y: hcb.id_tap(record.tap, -y), x)
    out = jax.vmap(function, (None, 0))(True, jnp.arange(3.0))
    np.testing.assert_allclose(helpers.finish(out), [0.0, 1.0, 2.0])
    seen(record, "the taken branch alone", [0.0, 1.0, 2.0])


WHERE = pytest.mark.parametrize("where", ["body", "cond", "both", "none"])


@STAGING
@WHERE
@pytest.mark.parametrize("unused", [False, True], ids=["used", "unused"])
def test_h7_vmap_of_while_with_a_batched_predicate(where: str, unused: bool, stage: Any) -> None:
    """JAX itself forgets to stop the finished lanes when the effect is in the condition."""
    record = Record()

    def tapped(part: str, value: Any) -> Any:
        if where not in (part, "both"):
            return value
        out = hcb.id_tap(record.labelled(part), value)
        return value if unused else out

    def count(n):
        return lax.while_loop(lambda s: tapped("cond", s) < n, lambda s: tapped("body", s) + 1, 0.0)

    out = helpers.finish(stage(jax.vmap(count))(jnp.array([1.0, 3.0, 0.0])))
    np.testing.assert_array_equal(out, [1.0, 3.0, 0.0], err_msg=f"lanes of while with a tap in {where}")
    counts = {label: record.labels.count(label) for label in ("cond", "body")}
    wanted = {"body": 3 if where in ("body", "both") else 0, "cond": 4 if where in ("cond", "both") else 0}
    assert counts == wanted, f"callbacks {counts}, but three rounds need {wanted}"
    rounds = [
        np.broadcast_to(arg, (3,)).tolist() for seen_, arg in zip(record.all, record.args) if seen_.label == "body"
    ]
    if rounds:
        assert rounds == [[0, 0, 0], [1, 1, 0], [1, 2, 0]], f"values of the lanes, finished ones unchanged: {rounds}"


@WHERE
def test_h7_nested_vmap_and_jvp_of_such_a_while(where: str) -> None:
    def tapped(part: str, value: Any) -> Any:
        return hcb.id_tap(lambda a, t: None, value) if where in (part, "both") else value

    def power(x, n):
        return lax.while_loop(
            lambda s: tapped("cond", s[0]) < n, lambda s: (s[0] + 1, tapped("body", s[1]) * x), (0, 1.0)
        )[1]

    x, n = jnp.array([2.0, 3.0]), jnp.array([1, 3, 0])
    mapped = jax.vmap(jax.vmap(power, (None, 0)), (0, None))
    out, tangent = jax.jvp(lambda x: mapped(x, n), (x,), (jnp.ones(2),))
    hcb.barrier_wait()
    np.testing.assert_allclose(out, np.array([2.0, 3.0])[:, None] ** np.array([1, 3, 0]))
    np.testing.assert_allclose(tangent, [[1, 12, 0], [1, 27, 0]], rtol=1e-5)


def test_h7_vmap_of_while_with_a_call_in_its_condition() -> None:
    """With a vmap_method, calls may decide a batched loop."""

    def count(n):
        less = lambda s: hcb.call(
            lambda a: np.asarray(a[0] < a[1]), (s, n), result_shape=jax.ShapeDtypeStruct((), np.bool_),
            vmap_method="broadcast_all")  # fmt: skip
        return lax.while_loop(less, lambda s: s + 1, jnp.int32(0))

    out = jax.vmap(count)(jnp.array([1, 3, 0], jnp.int32))
    np.testing.assert_array_equal(helpers.finish(out), [1, 3, 0])


def test_h7_vmap_of_scan_fori_and_map() -> None:
    record = Record()
    f = lambda x: lax.fori_loop(0, 2, lambda i, c: hcb.id_tap(record.tap, c) + i, x)
    np.testing.assert_allclose(helpers.finish(jax.vmap(f)(jnp.array([1.0, 2.0]))), [2.0, 3.0])
    seen(record, "fori", [1.0, 2.0], [1.0, 2.0])
    del record.all[:]
    out = lax.map(lambda x: hcb.id_tap(record.tap, x), jnp.arange(4.0), batch_size=2)
    np.testing.assert_allclose(helpers.finish(out), np.arange(4.0))
    seen(record, "map with batches", [0.0, 1.0], [2.0, 3.0])


def test_h7_vmap_with_axis_name_and_size() -> None:
    record = Record()
    out = jax.vmap(lambda x: hcb.id_tap(record.tap, lax.psum(x, "i")), axis_name="i")(jnp.arange(3.0))
    np.testing.assert_allclose(helpers.finish(out), [3.0] * 3)
    assert np.unique(record.args[0]).tolist() == [3.0]


def test_h7_per_lane_values_of_a_printing_tap() -> None:
    record = Record()
    jax.block_until_ready(
        jax.vmap(lambda x, y: hcb.id_tap(record.tap, {"b": y, "a": x}))(jnp.arange(2), jnp.ones((2, 3)))
    )
    hcb.barrier_wait()
    assert record.transforms == [batch((0, 0))]
    assert {name: leaf.shape for name, leaf in record.args[0].items()} == {"a": (2,), "b": (2, 3)}


def double(x: Any) -> Any:
    return x * 2


REFUSED = {
    "jvp": lambda f: jax.jvp(f, (1.0,), (1.0,)),
    "grad": lambda f: jax.grad(f)(1.0),
    "linearize": lambda f: jax.linearize(f, 1.0),
    "jit_grad": lambda f: jax.jit(jax.grad(f))(1.0),
    "grad_scan": lambda f: jax.grad(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0])(1.0),
    "vmap": lambda f: jax.vmap(f)(jnp.arange(2.0)),
    "jit_vmap": lambda f: jax.jit(jax.vmap(f))(jnp.arange(2.0)),
    "vmap_jit": lambda f: jax.vmap(jax.jit(f))(jnp.arange(2.0)),
}


@pytest.mark.parametrize("transform", REFUSED)
def test_h8_call_refuses_and_names_the_way_out(transform: str) -> None:
    function = lambda x: hcb.call(double, x, result_shape=jax.ShapeDtypeStruct((), np.float32))
    with pytest.raises(NotImplementedError) as caught:
        REFUSED[transform](function)
    ways = ("id_tap", "vmap_method") if "vmap" in transform else ("custom_jvp", "custom_vjp", "id_tap")
    for part in ("call", *ways):
        assert part in str(caught.value), f"{part!r} is missing in {caught.value}"


def test_h8_call_on_what_is_not_differentiated() -> None:
    def function(x, n):
        return x * hcb.call(double, n, result_shape=n)

    assert float(jax.grad(function)(3.0, jnp.float32(2.0))) == 4.0
    stopped = lambda x: x * hcb.call(double, lax.stop_gradient(x), result_shape=jax.ShapeDtypeStruct((), np.float32))
    assert float(jax.grad(stopped)(3.0)) == 6.0
    np.testing.assert_allclose(jax.vmap(lambda x: function(x, jnp.float32(2.0)))(jnp.arange(2.0)), [0.0, 4.0])


def test_h8_call_in_custom_jvp_and_custom_vjp() -> None:
    sin = lambda x: hcb.call(np.sin, x, result_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="expand_dims")
    cos = lambda x: hcb.call(np.cos, x, result_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="expand_dims")
    forward = jax.custom_jvp(sin)
    forward.defjvp(lambda primals, tangents: (forward(*primals), cos(primals[0]) * tangents[0]))
    backward = jax.custom_vjp(sin)
    backward.defvjp(lambda x: (sin(x), x), lambda x, ct: (ct * cos(x),))
    for function in (forward, backward):
        np.testing.assert_allclose(jax.grad(lambda x: function(x) ** 2)(jnp.float32(0.5)), np.sin(1.0), rtol=1e-5)
        np.testing.assert_allclose(
            jax.jit(jax.vmap(jax.grad(function)))(jnp.arange(3.0)), np.cos(np.arange(3.0)), rtol=1e-5
        )


METHODS = {
    # What x of shape (2,), batched by 3, and y of shape (2,), not batched, look like in each call.
    "sequential": ([((2,), (2,))] * 3),
    "sequential_unrolled": ([((2,), (2,))] * 3),
    "expand_dims": ([((3, 2), (1, 2))]),
    "broadcast_all": ([((3, 2), (3, 2))]),
}


@STAGING
@pytest.mark.parametrize("in_axis", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_h8_vmap_methods(method: str, in_axis: int, stage: Any) -> None:
    record = Record()
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([10, 20], np.float32)
    shape = (jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.int32))

    def function(args: Any) -> Any:
        record.add(args)
        a, b = args
        return a + b, np.asarray((a * 0 + b).sum(-1), np.int32)

    mapped = jax.vmap(lambda a, b: hcb.call(function, (a, b), result_shape=shape, vmap_method=method), (in_axis, None))
    out = helpers.finish(stage(mapped)(np.moveaxis(x, 0, in_axis), y))
    np.testing.assert_allclose(out[0], x + y)
    np.testing.assert_array_equal(out[1], [30] * 3)
    shapes = [jax.tree.map(np.shape, arg) for arg in record.args]
    shapes = [tuple(leaf.shape for leaf in arg) for arg in record.args]
    assert shapes == METHODS[method], f"{method}: operand shapes {shapes}, but should be {METHODS[method]}"
    if method.startswith("sequential"):
        firsts = [arg[0].tolist() for arg in record.args]
        assert firsts == x.tolist(), f"elements in order: {firsts}"


@pytest.mark.parametrize("method", METHODS)
def test_h8_vmap_methods_nested_and_in_loops(method: str) -> None:
    x, y = jnp.arange(3.0), jnp.arange(2.0)
    shape = jax.ShapeDtypeStruct((), np.float32)
    function = lambda a, b: hcb.call(
        lambda args: args[0] * 10 + args[1], (a, b), result_shape=shape, vmap_method=method
    )
    out = jax.vmap(jax.vmap(function, (None, 0)), (0, None))(x, y)
    wanted = np.arange(3.0)[:, None] * 10 + np.arange(2.0)
    np.testing.assert_allclose(helpers.finish(out), wanted)
    looped = jax.vmap(lambda a: lax.fori_loop(0, 2, lambda i, c: function(c, a), a))(x)
    np.testing.assert_allclose(helpers.finish(looped), np.arange(3.0) * 111)


@pytest.mark.parametrize("method", METHODS)
def test_h8_vmap_method_of_a_call_whose_result_is_unused(method: str) -> None:
    record = Record()
    f = lambda x: (hcb.call(record.caller(result=lambda _: None), x, vmap_method=method), x)[1]
    helpers.finish(jax.jit(jax.vmap(f))(jnp.arange(3.0)))
    assert len(record.all) == len(METHODS[method]), f"{len(record.all)} calls"


@pytest.mark.parametrize("method", ["legacy", "Sequential", "", 1, "legacy_vectorized"], ids=repr)
def test_h8_unknown_vmap_method_is_refused_at_once(method: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        hcb.call(double, 1.0, result_shape=1.0, vmap_method=method)
    for part in ("vmap_method", "sequential", "expand_dims", "broadcast_all"):
        assert part in str(caught.value), f"{part!r} is missing in {caught.value}"


def test_h6_partial_functions_under_transformations() -> None:
    record = Record()
    tap = functools.partial(lambda arg, transforms, *, what: record.add(arg, transforms, label=what), what="activation")
    jax.block_until_ready(jax.jit(jax.vmap(jax.grad(lambda x: hcb.id_tap(tap, x) ** 2)))(jnp.arange(2.0)))
    hcb.barrier_wait()
    assert (record.labels, record.transforms) == (["activation"], [batch((0,))])
