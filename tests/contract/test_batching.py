"""H7 and H8: callbacks under vmap."""

from __future__ import annotations

import functools
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


def batch(*entries: Any) -> tuple[Any, ...]:
    return tuple(("batch", {"batch_dims": dims}) for dims in entries)


@pytest.mark.contract("H7")
@STAGES
@EXAMPLES
def test_vmap_of_the_example(example: Any, stage: Any) -> None:
    record = Record()
    out = stage(jax.vmap(example(record)))(np.array([2.0, 3.0], np.float32))
    np.testing.assert_allclose(out, [8.0, 27.0])
    seen(record, "vmap", ([2.0, 3.0], [4.0, 9.0]))
    assert record.transforms == [batch((0, 0))], f"transforms {record.transforms}"
    assert isinstance(record.transforms[0], tuple), "transforms is a tuple"


@pytest.mark.contract("H7")
@STAGES
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
def test_batch_dims(in_axes: Any, shapes: Any, dims: Any, stage: Any) -> None:
    """The operand comes as it is, and `batch_dims` says where each batch axis lies."""
    record = Record()
    args = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    out = stage(jax.vmap(lambda x, y: hcb.id_tap(record.tap, (x, y))[0].sum(), in_axes))(*args)
    wanted = jax.vmap(lambda x, y: x.sum(), in_axes)(*args)
    np.testing.assert_allclose(helpers.finish(out), wanted)
    assert record.transforms == [batch(dims)], f"transforms {record.transforms}, but should be {batch(dims)}"
    for got, want in zip(record.args[0], args, strict=True):
        helpers.equal(got, want, "batched operand")


@pytest.mark.contract("H7")
@STAGES
def test_nested_vmaps_add_an_entry_each(stage: Any) -> None:
    record = Record()
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32)
    inner = jax.vmap(lambda a, b: sum(hcb.id_tap(record.tap, (a, b))), (0, None))
    out = stage(jax.vmap(inner, (None, 0)))(x[0], y)
    np.testing.assert_allclose(helpers.finish(out), x[0][None, :] + y[:, None])
    assert record.transforms == [batch((0, None), (None, 0))], f"transforms {record.transforms}"
    for got, want in zip(record.args[0], (x[0], y), strict=True):
        helpers.equal(got, want, "batched operand")


@pytest.mark.contract("H7")
def test_nothing_batched_is_not_transformed() -> None:
    record = Record()
    jax.block_until_ready(jax.vmap(lambda x: (hcb.id_tap(record.tap, 5.0), x)[1])(jnp.arange(3.0)))
    hcb.barrier_wait()
    assert record.values == [5.0]
    assert record.transforms == [()], f"transforms {record.transforms}"


@pytest.mark.contract("H7")
def test_vmap_of_grad_and_grad_of_vmap() -> None:
    record = Record()
    x = np.array([2.0, 3.0], np.float32)
    np.testing.assert_allclose(jax.vmap(jax.grad(power3(record)))(x), 3 * x**2)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(jax.vmap(power3(record))(x)))(x), 3 * x**2)
    seen(record, "both", *[([2.0, 3.0], [4.0, 9.0])] * 2)
    assert record.transforms == [batch((0, 0))] * 2, f"transforms {record.transforms}"


@pytest.mark.contract("H7")
def test_vmap_of_cond_runs_both_branches() -> None:
    record = Record()

    def branch(label: str, factor: float) -> Any:
        return lambda x: hcb.id_tap(record.labelled(label), x) * factor

    out = jax.vmap(lambda x: lax.cond(x > 1, branch("true", 2.0), branch("false", 3.0), x))(jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(helpers.finish(out), [0.0, 3.0, 4.0])
    assert sorted(record.labels) == ["false", "true"], f"branches {record.labels}"
    assert record.transforms == [batch((0,))] * 2, f"transforms {record.transforms}"


@pytest.mark.contract("H7")
def test_vmap_of_cond_with_one_predicate_for_all() -> None:
    record = Record()
    function = lambda p, x: lax.cond(p, lambda y: hcb.id_tap(record.tap, y), lambda y: hcb.id_tap(record.tap, -y), x)
    out = jax.vmap(function, (None, 0))(True, jnp.arange(3.0))
    np.testing.assert_allclose(helpers.finish(out), [0.0, 1.0, 2.0])
    seen(record, "the taken branch alone", [0.0, 1.0, 2.0])


WHERE = pytest.mark.parametrize("where", ["body", "cond", "both", "none"])


@pytest.mark.contract("H7")
@STAGES
@WHERE
@pytest.mark.parametrize("unused", [False, True], ids=["used", "unused"])
def test_vmap_of_while_with_a_batched_predicate(where: str, unused: bool, stage: Any) -> None:
    """JAX itself forgets to stop the finished batch elements when the effect is in the condition."""
    record = Record()

    def tapped(part: str, value: Any) -> Any:
        if where not in (part, "both"):
            return value
        out = hcb.id_tap(record.labelled(part), value)
        return value if unused else out

    def count(n):
        return lax.while_loop(lambda s: tapped("cond", s) < n, lambda s: tapped("body", s) + 1, 0.0)

    out = helpers.finish(stage(jax.vmap(count))(jnp.array([1.0, 3.0, 0.0])))
    np.testing.assert_array_equal(out, [1.0, 3.0, 0.0], err_msg=f"batch elements of while with a tap in {where}")
    counts = {label: record.labels.count(label) for label in ("cond", "body")}
    wanted = {"body": 3 if where in ("body", "both") else 0, "cond": 4 if where in ("cond", "both") else 0}
    assert counts == wanted, f"callbacks {counts}, but three rounds need {wanted}"
    rounds = [
        np.broadcast_to(arg, (3,)).tolist() for seen_, arg in zip(record.all, record.args) if seen_.label == "body"
    ]
    if rounds:
        assert rounds == [[0, 0, 0], [1, 1, 0], [1, 2, 0]], (
            f"values of each round, finished elements unchanged: {rounds}"
        )


@pytest.mark.contract("H7")
@WHERE
def test_nested_vmap_and_jvp_of_such_a_while(where: str) -> None:
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


@pytest.mark.contract("H7")
def test_vmap_of_while_with_a_call_in_its_condition() -> None:
    """With a vmap_method, calls may decide a batched loop."""

    def count(n):
        less = lambda s: hcb.call(
            lambda a: np.asarray(a[0] < a[1]), (s, n), result_shape=jax.ShapeDtypeStruct((), np.bool_),
            vmap_method="broadcast_all")  # fmt: skip
        return lax.while_loop(less, lambda s: s + 1, jnp.int32(0))

    out = jax.vmap(count)(jnp.array([1, 3, 0], jnp.int32))
    np.testing.assert_array_equal(helpers.finish(out), [1, 3, 0])


@pytest.mark.contract("H7")
def test_vmap_of_scan_fori_and_map() -> None:
    record = Record()
    f = lambda x: lax.fori_loop(0, 2, lambda i, c: hcb.id_tap(record.tap, c) + i, x)
    np.testing.assert_allclose(helpers.finish(jax.vmap(f)(jnp.array([1.0, 2.0]))), [2.0, 3.0])
    seen(record, "fori", [1.0, 2.0], [1.0, 2.0])
    del record.all[:]
    out = lax.map(lambda x: hcb.id_tap(record.tap, x), jnp.arange(4.0), batch_size=2)
    np.testing.assert_allclose(helpers.finish(out), np.arange(4.0))
    seen(record, "map with batches", [0.0, 1.0], [2.0, 3.0])


@pytest.mark.contract("H7")
def test_vmap_with_axis_name_and_size() -> None:
    record = Record()
    out = jax.vmap(lambda x: hcb.id_tap(record.tap, lax.psum(x, "i")), axis_name="i")(jnp.arange(3.0))
    np.testing.assert_allclose(helpers.finish(out), [3.0] * 3)
    assert np.unique(record.args[0]).tolist() == [3.0]


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


@pytest.mark.contract("H8")
@pytest.mark.parametrize("transform", REFUSED)
def test_call_refuses_and_names_the_way_out(transform: str) -> None:
    function = lambda x: hcb.call(double, x, result_shape=jax.ShapeDtypeStruct((), np.float32))
    with pytest.raises(NotImplementedError) as caught:
        REFUSED[transform](function)
    ways = ("id_tap", "vmap_method") if "vmap" in transform else ("custom_jvp", "custom_vjp", "id_tap")
    for part in ("call", *ways):
        assert part in str(caught.value), f"{part!r} is missing in {caught.value}"


@pytest.mark.contract("H8")
def test_call_on_what_is_not_differentiated() -> None:
    def function(x, n):
        return x * hcb.call(double, n, result_shape=n)

    assert float(jax.grad(function)(3.0, jnp.float32(2.0))) == 4.0
    stopped = lambda x: x * hcb.call(double, lax.stop_gradient(x), result_shape=jax.ShapeDtypeStruct((), np.float32))
    assert float(jax.grad(stopped)(3.0)) == 6.0
    np.testing.assert_allclose(jax.vmap(lambda x: function(x, jnp.float32(2.0)))(jnp.arange(2.0)), [0.0, 4.0])


METHODS = {
    # What x of shape (2,), batched by 3, and y of shape (2,), not batched, look like in each call.
    "sequential": ([((2,), (2,))] * 3),
    "sequential_unrolled": ([((2,), (2,))] * 3),
    "expand_dims": ([((3, 2), (1, 2))]),
    "broadcast_all": ([((3, 2), (3, 2))]),
}


@pytest.mark.contract("H8")
@STAGES
@pytest.mark.parametrize("in_axis", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_vmap_methods(method: str, in_axis: int, stage: Any) -> None:
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


@pytest.mark.contract("H8")
@pytest.mark.parametrize("method", METHODS)
def test_vmap_methods_nested_and_in_loops(method: str) -> None:
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


@pytest.mark.contract("H8")
@pytest.mark.parametrize("method", METHODS)
def test_vmap_method_of_a_call_whose_result_is_unused(method: str) -> None:
    record = Record()
    f = lambda x: (hcb.call(record.caller(result=lambda _: None), x, vmap_method=method), x)[1]
    helpers.finish(jax.jit(jax.vmap(f))(jnp.arange(3.0)))
    assert len(record.all) == len(METHODS[method]), f"{len(record.all)} calls"


@pytest.mark.contract("H8")
@pytest.mark.parametrize("method", ["legacy", "Sequential", "", 1, "legacy_vectorized"], ids=repr)
def test_unknown_vmap_method_is_refused_at_once(method: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        hcb.call(double, 1.0, result_shape=1.0, vmap_method=method)
    for part in ("vmap_method", "sequential", "expand_dims", "broadcast_all"):
        assert part in str(caught.value), f"{part!r} is missing in {caught.value}"


@pytest.mark.contract("H6")
def test_partial_functions_under_transformations() -> None:
    record = Record()
    tap = functools.partial(lambda arg, transforms, *, what: record.add(arg, transforms, label=what), what="activation")
    jax.block_until_ready(jax.jit(jax.vmap(jax.grad(lambda x: hcb.id_tap(tap, x) ** 2)))(jnp.arange(2.0)))
    hcb.barrier_wait()
    assert (record.labels, record.transforms) == (["activation"], [batch((0,))])


@pytest.mark.contract("H7", "H11")
def test_a_tap_that_changes_its_transforms_changes_those_of_no_later_run() -> None:
    seen: list[Any] = []

    def note(_: Any, transforms: Any) -> None:
        seen.append([(name, dict(entry)) for name, entry in transforms])
        for _, entry in transforms:
            entry.clear()

    tapped = jax.jit(jax.vmap(lambda x: hcb.id_tap(note, x)))
    for _ in range(2):
        tapped(np.arange(3.0))
        hcb.barrier_wait()
    assert seen == [[("batch", {"batch_dims": (0,)})]] * 2


@pytest.mark.contract("B4", "D2")
@pytest.mark.parametrize("kind", ["buffer", "dlpack", "dlpack, in place"])
@pytest.mark.parametrize("effect", [False, True], ids=["pure", "effect"])
@pytest.mark.parametrize(
    ("method", "shapes"),
    [
        ("sequential", [((2,), ())] * 3),
        ("sequential_unrolled", [((2,), ())] * 3),
        ("expand_dims", [((3, 2), (1,))]),
        ("broadcast_all", [((3, 2), (3,))]),
        ("legacy_vectorized", [((3, 2), ())]),
    ],
)
def test_methods_of_buffer_callbacks_with_and_without_an_effect(
    method: str, shapes: Any, effect: bool, kind: str
) -> None:
    seen: list[Any] = []

    def total(row: Any, number: Any) -> Any:
        seen.append((np.asarray(row).shape, np.asarray(number).shape))
        return np.asarray(row).sum(-1) + np.asarray(number)

    def fill(*arguments: Any) -> None:
        out, row, number = arguments[-3:]
        np.asarray(out)[...] = total(row, number)

    like = jax.ShapeDtypeStruct((), np.float32)
    make = {
        "buffer": functools.partial(hcb.buffer_callback, fill, like),
        "dlpack": functools.partial(hcb.dlpack_callback, total, like),
        "dlpack, in place": functools.partial(hcb.dlpack_callback, fill, like, in_place=True),
    }[kind]
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    batched = jax.vmap(make(has_side_effect=effect, vmap_method=method), in_axes=(0, None))
    for run in (jax.jit(batched), batched):
        np.testing.assert_array_equal(run(rows, np.float32(10)), rows.sum(-1) + 10)
        assert seen == shapes
        seen.clear()
    with pytest.raises(NotImplementedError, match="vmap_method"):
        jax.vmap(make(has_side_effect=effect), in_axes=(0, None))(rows, np.float32(10))
