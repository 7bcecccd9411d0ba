"""X1, X3: `io_callback` runs exactly once wherever it may run, and is refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import Record, like
from support.pairwise import pairwise
from support.subprocesses import run_program
from support.transforming import STAGING

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
INT = jax.ShapeDtypeStruct((), np.int32)
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


def values(record: Record) -> list[Any]:
    hcb.barrier_wait()
    return record.values


class Counter:
    """A host with a state: gives out one number after the other."""

    def __init__(self) -> None:
        self.record = Record()

    def __call__(self, *args: Any) -> Any:
        self.record.add(args[0] if args else None)
        return np.int32(len(self.record.all) - 1)

    def silent(self, *args: Any) -> None:
        self(*args)


# Values and counts -----------------------------------------------------------------------------------------------


@pytest.mark.contract("X3")
@ORDERED
@pytest.mark.parametrize("layout", helpers.LAYOUTS, ids=helpers.named)
def test_every_layout_calls_once_and_gets_its_own_result(layout: helpers.Layout, ordered: bool) -> None:
    record = Record()

    def host(x: Any) -> Any:
        record.add(x)
        return x * 2

    given = [X + n for n in range(len(layout.callers))]
    outs = layout.run(lambda x: hcb.io_callback(host, like(x), x, ordered=ordered) + 1, given)
    for value, out in zip(given, outs, strict=True):
        helpers.equal(out, value * 2 + 1, layout.name)
    assert sorted(values(record)) == sorted(value.tolist() for value in given), f"calls: {record.values}"


@pytest.mark.contract("X3")
@ORDERED
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_runs_although_nobody_uses_it(layout: helpers.Layout, ordered: bool) -> None:
    record = Record()
    kinds = {"none": None, "empty": (), "used_by_nobody": INT}

    def program(x):
        for name, shapes in kinds.items():
            result = np.int32(0) if shapes is INT else shapes
            hcb.io_callback(lambda *_, n=name, r=result: (record.add(n), r)[1], shapes, x, ordered=ordered)
        hcb.io_callback(lambda: record.add("argless"), None, ordered=ordered)
        return x + 1

    compiled = layout.compile(program)
    for _ in range(2):
        jax.block_until_ready(compiled(layout.same(X)))
    expected = [*kinds, "argless"] * (2 * len(layout.callers))
    assert sorted(values(record)) == sorted(expected), f"calls: {record.values}"


@pytest.mark.contract("X3")
@STAGING
@ORDERED
def test_pytrees_keyword_arguments_and_state(stage: Any, ordered: bool) -> None:
    state = {"total": np.float32(0)}

    def host(tree: Any, *, weight: Any) -> Any:
        state["total"] += tree["x"].sum() * weight
        return [state["total"], {"n": tree["y"][0]}]

    def program(x):
        shapes = (SCALAR, {"n": INT})
        return hcb.io_callback(host, shapes, {"x": x, "y": (jnp.int32(4),)}, weight=x[1], ordered=ordered)

    compiled = stage(program)
    outs = [compiled(X) for _ in range(3)]
    for n, out in enumerate(outs, 1):
        helpers.equal(out, (np.float32(28 * n), {"n": np.int32(4)}), f"run {n}")


@pytest.mark.contract("X3")
@STAGING
@ORDERED
@pytest.mark.parametrize("result", ["a value", 3, np.zeros(5), {"a": 1}], ids=str)
def test_a_result_that_nobody_asked_for_is_refused(stage: Any, ordered: bool, result: Any) -> None:
    f = stage(lambda x: (hcb.io_callback(lambda x: result, None, x, ordered=ordered), x)[1])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"Mismatched number of outputs.*Expected: 0, Actual: 1"):
        jax.block_until_ready(f(X))
    with pytest.raises(hcb.CallbackException, match="Expected: 0"):
        hcb.barrier_wait()


def zero(x: Any) -> Any:
    """A carry that starts from the operand; what starts from constants has a test of its own below."""
    return x[0].astype(np.int32)


def nested_loops(x: Any, f: Any) -> Any:
    inner = lambda i, c: lax.scan(lambda d, j: (d + f(10 * i + j), None), c, jnp.arange(2))[0]
    return lax.fori_loop(0, 2, inner, zero(x))


def dead_code(x: Any, f: Any) -> Any:
    lax.scan(lambda c, i: (c, f(i)), x, jnp.arange(3))
    lax.cond(x[0] < -1, lambda: f(jnp.int32(5)), lambda: f(jnp.int32(6)))
    f(jnp.int32(7))
    return x


CONSTRUCTS: dict[str, tuple[Callable[[Any, Any], Any], list[int]]] = {
    "cond": (lambda x, f: lax.cond(x[0] > -1, lambda: f(jnp.int32(1)), lambda: f(jnp.int32(2))), [1]),
    "while_body": (
        lambda x, f: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[0])), (zero(x), zero(x)))[1],
        [0, 1, 2],
    ),
    "while_condition": (lambda x, f: lax.while_loop(lambda s: f(s) < 3, lambda s: s + 1, zero(x)), [0, 1, 2, 3]),
    "fori": (lambda x, f: lax.fori_loop(0, 4, lambda i, c: c + f(i), zero(x)), [0, 1, 2, 3]),
    "scan": (lambda x, f: lax.scan(lambda c, i: (c, f(i)), x, jnp.arange(4))[1], [0, 1, 2, 3]),
    "nested_loops": (nested_loops, [0, 1, 10, 11]),
    "dead_code": (dead_code, [0, 1, 2, 6, 7]),
}


@pytest.mark.contract("X1", "X3")
@pairwise(construct=CONSTRUCTS, name=[layout.name for layout in helpers.MAIN_LAYOUTS], order=("unordered", "ordered"))
def test_every_construct_calls_exactly_as_often(construct: str, name: str, order: str) -> None:
    counter, ordered = Record(), order == "ordered"
    (layout,) = (layout for layout in helpers.MAIN_LAYOUTS if layout.name == name)

    def host(i: Any) -> Any:
        counter.add(i)
        return i

    program, calls = CONSTRUCTS[construct]
    plain = layout.run(lambda x: program(x, lambda i: jnp.int32(i)), layout.same(X))
    outs = layout.run(lambda x: program(x, lambda i: hcb.io_callback(host, INT, i, ordered=ordered)), layout.same(X))
    for out, expected in zip(outs, plain, strict=True):
        helpers.equal(out, expected, construct)
    got = values(counter)
    if ordered and len(layout.callers) == 1:
        assert got == calls, f"calls in order: {got}"
    assert sorted(got) == sorted(calls * len(layout.callers)), f"calls: {got}"


@pytest.mark.contract("X3")
@ORDERED
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_loop_that_starts_from_constants(layout: helpers.Layout, ordered: bool) -> None:
    """Guards against XLA's copies of such a loop, which run too: 51 times the calls with JAX's own in 0.12.0.1."""
    counter = Counter()
    f = lambda i: hcb.io_callback(lambda i: (counter(i), i)[1], INT, i, ordered=ordered)
    outs = layout.run(lambda x: lax.fori_loop(0, 4, lambda i, c: c + f(i), jnp.int32(0)), layout.same(X))
    helpers.equal(outs, layout.same(np.int32(6)), "sums")
    count = len(values(counter.record))
    assert count == 4 * len(layout.callers), f"{count} calls on {len(layout.callers)} device(s)"


@pytest.mark.contract("X3")
@ORDERED
@pytest.mark.parametrize("layout", [helpers.JIT, helpers.PMAP, helpers.MESH], ids=helpers.named)
def test_unused_cond_before_an_inner_jit(layout: helpers.Layout, ordered: bool) -> None:
    """Guards against an error of the compiler, which JAX's own ordered callbacks meet in 0.12.0.1."""
    counter = Counter()
    emit = lambda n: hcb.io_callback(counter, INT, jnp.int32(n), ordered=ordered)

    def program(x):
        lax.cond(x[0] < -1, lambda: emit(5), lambda: emit(6))
        jax.jit(lambda: emit(7))()
        return x

    layout.run(program, layout.same(X))
    got = values(counter.record)
    assert sorted(got) == sorted([6, 7] * len(layout.callers)), f"calls: {got}"


# vmap ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("X1", "X3")
@STAGING
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
@STAGING
def test_unbatched_under_vmap_runs_once_not_once_an_element(stage: Any) -> None:
    counter = Counter()
    stage(jax.vmap(lambda x: (hcb.io_callback(counter.silent, None, 1.0), x)[1]))(X)
    assert values(counter.record) == [1.0], f"calls: {counter.record.values}"


@pytest.mark.contract("X1", "X3")
@STAGING
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


# Differentiation and checkpoints ---------------------------------------------------------------------------------


@pytest.mark.contract("X1", "X3")
@ORDERED
@STAGING
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
@STAGING
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
@STAGING
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


KINDS: dict[str, Callable[..., Any]] = {"pure": hcb.pure_callback, "io": hcb.io_callback}


@pytest.mark.contract("X2", "X3")
@STAGING
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_refused_before_anything_runs(kind: str, stage: Any) -> None:
    counter, callback = Counter(), KINDS[kind]
    wide = jax.ShapeDtypeStruct((2,), np.int64)
    wrong: list[tuple[type[Exception], str, Callable[[Any], Any]]] = [
        (TypeError, f"{kind}_callback: callback must be callable, got 'text'", lambda x: callback("text", INT, x)),
        (TypeError, "callback must be callable", lambda x: hcb.debug.callback(3, x)),
        (ValueError, "result_shape_dtypes=3 does not.*'shape' and 'dtype'", lambda x: callback(counter, 3, x)),
        (ValueError, "does not describe a result", lambda x: callback(counter, {"a": INT, "b": "int32"}, x)),
        (ValueError, "does not describe", lambda x: callback(counter, jax.ShapeDtypeStruct((-1,), np.int32), x)),
        (ValueError, "64-bit types.*jax_enable_x64.*ask for int32", lambda x: callback(counter, wide, x)),
        (TypeError, "an array or a scalar, got 'text'.*functools.partial", lambda x: callback(counter, INT, "text")),
        (TypeError, "must be an array or a scalar", lambda x: callback(counter, INT, x, k=object())),
    ]  # fmt: skip
    for error, match, program in wrong:
        with pytest.raises(error, match=match):
            stage(program)(X)
    assert values(counter.record) == []


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


@pytest.mark.contract("X2", "X4")
def test_callbacks_that_run_jax_end_on_few_and_many_devices() -> None:
    """Guards against #24255 (jnp in a callback), pmap_psum and jit_sharded_jnp: deadlocks of JAX's own."""
    run_program("""
like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
seen = []
debug = jax.jit(lambda x: (hcb.debug.callback(lambda a: seen.append(float(jnp.sum(a @ a))), x), x)[1])
for _ in range(20):
    debug(np.ones((500, 500), np.float32))
jax.effects_barrier()
assert seen == [500.0**3] * 20
for size, count in ((64, 2), (65536, 4)):
    psum = lambda x: jax.lax.psum(hcb.pure_callback(lambda a: np.asarray(jnp.sin(a)) + a, like(x), x), "i")
    mapped = jax.pmap(psum, axis_name="i", devices=jax.devices()[:count])
    outs = [mapped(np.zeros((count, size), np.float32) + n) for n in range(6)]
    assert all(np.allclose(out, count * (np.sin(n) + n)) for n, out in enumerate(outs))
x = jax.device_put(np.ones(1 << 18, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
sine = jax.jit(lambda x: hcb.pure_callback(lambda a: np.asarray(jnp.sin(a)), like(x), x))
assert all(np.allclose(sine(x), np.sin(1)) for _ in range(5))
""", devices=4, timeout=60).check()  # fmt: skip
