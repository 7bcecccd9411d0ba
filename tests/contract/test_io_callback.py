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
from support.counting import INT, ORDERED, SCALAR, Counter, X, values
from support.helpers import STAGES, Record, like
from support.pairwise import in_turns, pairwise
from support.subprocesses import run_program

import hostcb as hcb


@pytest.mark.contract("X3")
@in_turns(("layout", "ordered"), helpers.LAYOUTS, [False, True])
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
@STAGES
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
@STAGES
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
