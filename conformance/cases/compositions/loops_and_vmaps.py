"""Callbacks of several kinds in loops in loops, in one order with all others, and in nested vmaps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..harness.case import Case, case
from ..harness.composing import Composition, batched, ran


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
