"""Callbacks of several kinds in loops in loops, in one order with all others, and in nested vmaps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..harness.case import Case, case
from .composing import Composition, batched, ran


@case("jit", "dlpack_callback", "H4")
def fuzz_buffers_in_scan(case: Case) -> None:
    """Buffer and DLPack callbacks, with and without effect, run for each element of a vmap in a scan, beside a tap."""
    run = Composition(case)

    def step(row: Any, y: Any) -> Any:
        def element(z: Any) -> Any:
            pure = run("dlpack_callback", "dlpack", z, y, vmap_method="broadcast_all")
            counted = run("dlpack_callback_side_effect", "dlpack_effect", pure)
            unbatched = run("buffer_callback_side_effect", "buffer_effect", y)
            return run("buffer_callback", "buffer", counted, unbatched, vmap_method="sequential")

        tapped = run("id_tap", "tap", jax.vmap(element)(row))
        return tapped, run("dlpack_callback_side_effect", "sum", jnp.sum(tapped))

    expected = [
        *(ran("dlpack", [1.0, 2.0], [1.0, 1.0]), ran("dlpack", [4.0, 5.0], [2.0, 2.0])),
        *(ran("dlpack_effect", y) for y in (2.0, 3.0, 5.0, 6.0)),
        *(ran("buffer_effect", y) for y in (1.0, 2.0)),
        *(ran("buffer", *leaves) for leaves in ((3.0, 2.0), (4.0, 2.0), (6.0, 3.0), (7.0, 3.0))),
        *(ran("tap", [4.0, 5.0]), ran("tap", [7.0, 8.0])),
        *(ran("sum", 9.0), ran("sum", 15.0)),
    ]
    program = jax.jit(lambda x: lax.scan(step, x, x))
    run.check(program, [1.0, 2.0], [[7.0, 8.0], [10.0, 16.0]], expected)


@case("jit", "dlpack_callback", "H4 H5")
def fuzz_eager_kinds(case: Case) -> None:
    """Outside jit every kind runs in order: also in a loop as long as a callback says, and in a derivative."""
    run = Composition(case)

    def step(index: Any, y: Any) -> Any:
        return run("debug_callback", "step", run("pure_callback", "pure", y, index))

    def program(x: Any) -> Any:
        called = run("call", "call", run("id_tap", "tap", x), np.int32(3))
        trips = run("io_callback_ordered", "trips", np.int32(2))
        called = run("debug_callback_ordered", "debug", called)
        buffer = run("dlpack_callback", "buffer", lax.fori_loop(0, trips, step, called))
        value, slope = jax.value_and_grad(lambda y: run("id_tap", "square", y * y))(buffer)
        return value, run("io_callback", "slope", slope)

    expected = [
        *(ran("tap", 1.0), ran("call", 1.0, 3), ran("trips", 2), ran("debug", 2.0)),
        *(ran("pure", *leaves) for leaves in ((2.0, 0), (3.0, 1), (4.0, 2))),
        *(ran("step", y) for y in (3.0, 4.0, 5.0)),
        *(ran("buffer", 5.0), ran("square", 36.0), ran("slope", 12.0)),
    ]
    run.check(program, 1.0, [36.0, 13.0], expected)


@case("jit", "debug_callback_ordered", "H4 H5")
def fuzz_ordered_of_jax(case: Case) -> None:
    """Ordered io and debug callbacks run in order in a scan whose inner loop is as long as a callback says."""
    run = Composition(case)

    def inner(index: Any, y: Any) -> Any:
        return run("debug_callback_ordered", "seen", run("io_callback_ordered", "value", y), index)

    def step(carry: Any, _: Any) -> Any:
        y, count = carry
        count = run("io_callback_ordered", "trips", count, y)
        return (lax.fori_loop(0, count, inner, y), count), None

    expected = [
        *(ran("trips", 0, 1.0), ran("value", 1.0), ran("seen", 2.0, 0)),
        *(ran("trips", 1, 2.0), ran("value", 2.0), ran("seen", 3.0, 0), ran("value", 3.0), ran("seen", 4.0, 1)),
    ]
    program = jax.jit(lambda x: lax.scan(step, (x, jnp.int32(0)), None, length=2)[0][0])
    run.check(program, 1.0, [4.0], expected)


@case("jit", "call", "H4 H5")
def fuzz_prints_in_loops(case: Case) -> None:
    """Prints of both kinds come as often as the call beside them runs, in a loop and in a vmap."""
    run = Composition(case)

    def element(z: Any) -> Any:
        return run("debug_print_ordered", "element", run("id_print", "batch", z))

    def step(_: Any, y: Any) -> Any:
        y = run("debug_print", "unordered", run("id_print", "print", y))
        y = run("debug_print_ordered", "ordered", y)
        row = run("id_print", "row", jax.vmap(element)(jnp.stack([y, y + 1])))
        return run("call", "sum", jnp.sum(row))

    expected = [
        event
        for y in (1.0, 4.0)
        for event in (
            *(ran("print", y), ran("unordered", y), ran("ordered", y)),
            *(ran("batch", [y, y + 1], transforms=batched(0)), ran("element", y), ran("element", y + 1)),
            *(ran("row", [y, y + 1]), ran("sum", 2 * y + 1)),
        )
    ]
    program = jax.jit(lambda x: run("id_print", "last", lax.fori_loop(0, 2, step, x)))
    run.check(program, 1.0, [10.0], [*expected, ran("last", 10.0)])


@case("jit", "debug_callback", "H4")
def fuzz_unordered_of_jax(case: Case) -> None:
    """Unordered callbacks run once for each step and element: in loops, in a switch and in a vmap."""
    run = Composition(case)

    def inner(y: Any, _: Any) -> Any:
        return run("pure_callback", "pure", run("debug_callback", "inner", y)), None

    branches = [
        lambda y: y,
        lambda y: run("io_callback", "second", y),
        lambda y: run("debug_callback", "third", y),
    ]

    def outer(index: Any, y: Any) -> Any:
        y, _ = lax.scan(inner, run("io_callback", "outer", y, index), None, length=2)
        return lax.switch(index, branches, y)

    def program(x: Any) -> Any:
        y = lax.fori_loop(0, x[1].astype(jnp.int32), outer, x[0])
        increased = jax.vmap(lambda z: run("io_callback", "element", z, y))(x)
        return jax.vmap(lambda z: run("pure_callback", "row", z, vmap_method="broadcast_all"))(increased)

    expected = [
        *(ran("outer", *leaves) for leaves in ((1.0, 0), (4.0, 1), (8.0, 2))),
        *(ran(name, y) for y in (2.0, 3.0, 5.0, 6.0, 9.0, 10.0) for name in ("inner", "pure")),
        *(ran("second", 7.0), ran("third", 11.0)),
        *(ran("element", 1.0, 11.0), ran("element", 3.0, 11.0), ran("row", [2.0, 4.0])),
    ]
    run.check(jax.jit(program), [1.0, 3.0], [[3.0, 5.0]], expected)


@case("jit", "call", "H4 H5")
def fuzz_while_condition(case: Case) -> None:
    """A while_loop in a scan ends when the result of the call in its condition says so, and calls as often."""
    run = Composition(case)

    def step(y: Any, _: Any) -> Any:
        def condition(z: Any) -> Any:
            return run("call", "condition", run("debug_callback", "asked", z), y) < 3 * y

        return lax.while_loop(condition, lambda z: run("id_tap", "body", z) + 1, y), None

    expected = [
        *(ran("condition", 1.0, 1.0), ran("body", 1.0), ran("condition", 2.0, 1.0)),
        *(event for z in (2.0, 3.0, 4.0) for event in (ran("condition", z, 2.0), ran("body", z))),
        ran("condition", 5.0, 2.0),
        *(ran("asked", z) for z in (1.0, 2.0, 2.0, 3.0, 4.0, 5.0)),
        ran("end", 5.0),
    ]
    program = jax.jit(lambda x: run("io_callback", "end", lax.scan(step, x, None, length=2)[0]))
    run.check(program, 1.0, [6.0], expected)


@case("jit", "call", "H4 H5 H8")
def fuzz_vmap_cond(case: Case) -> None:
    """Both branches of a batched cond call back with all batch elements, at each step of a scan; results are unused."""
    run = Composition(case)

    def positive(y: Any) -> Any:
        run("id_tap", "positive", y)
        run("debug_callback_ordered", "seen", y)
        return y - 1

    def negative(y: Any) -> Any:
        return 2 * run("call", "negative", y, np.int32(7), vmap_method="sequential")

    def step(y: Any, _: Any) -> Any:
        return lax.cond(y > 0, positive, negative, y), None

    def program(x: Any) -> Any:
        last = jax.vmap(lambda y: lax.scan(step, y, None, length=2)[0])(x)
        run("call", "unused", last)
        return last

    expected = [
        event
        for first, second in ((-1.0, 2.0), (0.0, 1.0))
        for event in (
            *(ran("negative", first, 7), ran("negative", second, 7)),
            ran("positive", [first, second], transforms=batched(0)),
            *(ran("seen", first), ran("seen", second)),
        )
    ]
    run.check(jax.jit(program), [-1.0, 2.0], [[2.0, 0.0]], [*expected, ran("unused", [2.0, 0.0])])


@case("jit", "call", "H4 H5 H8")
def fuzz_vmap_in_vmap(case: Case) -> None:
    """In a vmap in a vmap callbacks run for the elements of both, of one, or of none, along different axes."""
    run = Composition(case)

    def io(z: Any, _: Any) -> Any:
        return run("io_callback", "io", z), None

    def column(rows: Any, y: Any) -> Any:
        def element(z: Any) -> Any:
            z = run("id_tap", "tap", z, y)
            run("call", "broadcast", z, y, vmap_method="broadcast_all")
            run("debug_callback_ordered", "debug", z)
            large = lambda z: run("call", "large", z, vmap_method="sequential")
            return lax.scan(io, lax.cond(z > 3, large, lambda z: run("id_tap", "small", z), z), None, length=2)[0]

        summed = jnp.sum(run("id_print", "column", jax.vmap(element)(rows)))
        return run("call", "sum", summed, vmap_method="sequential")

    def program(x: Any) -> Any:
        return run("id_tap", "last", jax.vmap(column, in_axes=(1, 0))(x, 10 * x[0]))

    x, y = np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.asarray([10.0, 20.0, 30.0])
    expected = [
        # The oracle puts the axis of the outermost vmap first, as `batch_dims` says.
        ran("tap", x.T, y, transforms=batched(0, None) + batched(0, 0)),
        ran("broadcast", x.T, np.stack([y, y], 1)),
        *(ran(name, float(z)) for name in ("debug", "large") for z in range(1, 7)),
        ran("small", x.T, transforms=batched(0) + batched(0)),
        *(ran("io", z) for z in (1.0, 2.0, 3.0, 5.0, 6.0, 7.0)),
        *(ran("io", z) for z in (2.0, 3.0, 4.0, 6.0, 7.0, 8.0)),
        ran("column", [[3.0, 7.0], [4.0, 8.0], [5.0, 9.0]], transforms=batched(0)),
        *(ran("sum", z) for z in (10.0, 12.0, 14.0)),
        ran("last", [11.0, 13.0, 15.0]),
    ]
    run.check(jax.jit(program), x, [[11.0, 13.0, 15.0]], expected, unordered=["debug", "large"])


@case("jit", "call", "H4 H5 H8")
def fuzz_vmap_while_tap(case: Case) -> None:
    """Taps in the body and the condition of a loop see all batch elements until the last one is done."""
    run = Composition(case)

    def element(y: Any) -> Any:
        def condition(carry: Any) -> Any:
            count, z = carry
            run("id_tap", "condition", z)
            return count < y.astype(jnp.int32)

        def body(carry: Any) -> Any:
            count, z = carry
            z = run("id_tap", "body", z, count)
            return count + 1, run("pure_callback", "pure", z, y, vmap_method="broadcast_all")

        count, z = lax.while_loop(condition, body, (jnp.int32(0), y))
        return run("call", "last", z, count, vmap_method="sequential")

    expected = [
        ran("condition", [0.0, 1.0, 2.0], transforms=batched(0)),
        ran("body", [0.0, 1.0, 2.0], [0, 0, 0], transforms=batched(0, 0)),
        ran("pure", [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]),
        ran("condition", [0.0, 2.0, 3.0], transforms=batched(0)),
        ran("body", [0.0, 2.0, 3.0], [0, 1, 1], transforms=batched(0, 0)),
        ran("pure", [0.0, 2.0, 3.0], [0.0, 1.0, 2.0]),
        ran("condition", [0.0, 2.0, 4.0], transforms=batched(0)),
        *(ran("last", 0.0, 0), ran("last", 2.0, 1), ran("last", 4.0, 2), ran("end", [1.0, 3.0, 5.0])),
    ]
    program = jax.jit(lambda x: run("debug_callback_ordered", "end", jax.vmap(element)(x)))
    run.check(program, [0.0, 1.0, 2.0], [[1.0, 3.0, 5.0]], expected)
