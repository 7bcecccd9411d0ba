"""Callbacks of several kinds beside collectives, and in loops and branches that differ between devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...model.worlds import Need
from ..harness.case import Case, case
from .composing import Composition, batched, ran

AXIS = "devices"


def _ring(devices: int) -> list[tuple[int, int]]:
    """Each device sends to the next one."""
    return [(device, (device + 1) % devices) for device in range(devices)]


@case("pjit", "call", "H4 H5 H10", minimum_devices=4)
def fuzz_mesh_loops(case: Case) -> None:
    """In nested loops over a mesh each callback runs at each step; the inner loop is as long as a callback says."""
    run = Composition(case, devices=4)

    def step(_: Any, carry: Any) -> Any:
        rows, count = carry
        trips = run("call", "trips", count, rows)
        rows = lax.fori_loop(0, trips, lambda index, one: run("id_tap", "inner", one, index), rows)
        run("io_callback_ordered", "outer", trips)
        return 2 * rows, trips

    rows = np.arange(8.0).reshape(4, 2)
    expected = [
        *(ran("trips", 0, rows), ran("inner", rows, 0), ran("outer", 1)),
        *(ran("trips", 1, 2 * rows), ran("inner", 2 * rows, 0), ran("inner", 2 * rows, 1), ran("outer", 2)),
    ]
    program = run.case.compile(lambda x: lax.fori_loop(0, 2, step, (x, jnp.int32(0)))[0])
    run.check(program, rows, [4 * rows], expected)


@case("pmap", "call", "H4 H5 H8 H9", minimum_devices=2)
@case("shard_map", "call", "H4 H5 H8 H9", minimum_devices=4, needs="shard_map")
def fuzz_collectives(case: Case) -> None:
    """Callbacks between collectives run on each device, under vmap, in a derivative and in forward mode."""
    devices = 2 if case.layout == "pmap" else 4
    run, weights = Composition(case, devices), np.arange(1.0, devices + 1, dtype=np.float32)

    def element(y: Any) -> Any:
        total = run("id_tap", "total", lax.psum(y, AXIS), y)
        return total + run("call", "moved", lax.ppermute(y, AXIS, _ring(devices)), vmap_method="sequential")

    def objective(row: Any) -> Any:
        product = run("id_tap", "product", weights @ lax.all_gather(row, AXIS) * row)
        return jnp.sum(lax.ppermute(product, AXIS, _ring(devices)))

    def each(row: Any) -> Any:
        moved, slopes = jax.vmap(element)(row), jax.grad(objective)(row)
        _, tangent = jax.jvp(lambda one: run("id_print", "print", lax.psum(one, AXIS) * one), (row,), (row,))
        return moved, slopes, run("id_tap", "tangent", tangent)

    rows = np.arange(1.0, 2 * devices + 1).reshape(devices, 2)
    before, total, weighted = np.roll(rows, 1, axis=0), rows.sum(axis=0), weights @ rows
    expected = [
        event
        for device, row in enumerate(rows)
        for event in (
            ran("total", total, row, device=device, transforms=batched(0, 0)),
            *(ran("moved", y, device=device) for y in before[device]),
            ran("product", weighted * row, device=device),
            ran("print", total * row, device=device),
            ran("tangent", 2 * total * row, device=device),
        )
    ]
    results = [total + before + 1, weighted + np.outer(weights, total), 2 * total * rows]
    run.check(run.on_each_device(each), rows, results, expected)


@case("pmap", "call", "H4 H5 H9", minimum_devices=2)
def fuzz_pmap_moves(case: Case) -> None:
    """Each device of a pmap calls back with the part that it has got from another, in its own branch."""
    run = Composition(case, devices=2)

    def each(row: Any) -> Any:
        def squares(moved: Any) -> Any:
            return jnp.sum(run("id_tap", "squares", moved * moved))

        index = lax.axis_index(AXIS)
        value, slopes = jax.value_and_grad(squares)(lax.ppermute(row, AXIS, _ring(2)))
        first = lambda one: run("call", "first", one, value)
        second = lambda one: run("debug_callback", "seen", run("pure_callback", "second", one))
        return run("id_tap", "sum", lax.psum(lax.switch(index, [first, second], slopes), AXIS), index)

    expected = [
        *(ran("squares", [9.0, 16.0]), ran("first", [6.0, 8.0], 25.0), ran("sum", [10.0, 14.0], 0)),
        # The compiler may call a pure callback of a branch that does not run.
        ran("second", [6.0, 8.0], need=Need.ANY_NUMBER),
        *(ran("squares", [1.0, 4.0], device=1), ran("second", [2.0, 4.0], device=1)),
        *(ran("seen", [3.0, 5.0], device=1), ran("sum", [10.0, 14.0], 1, device=1)),
    ]
    results = [[[10.0, 14.0], [10.0, 14.0]]]
    run.check(run.on_each_device(each), [[1.0, 2.0], [3.0, 4.0]], results, expected)


@case("shard_map", "io_callback", "H4 H9", minimum_devices=2, needs="shard_map")
def fuzz_pure_moved_out(case: Case) -> None:
    """Each device runs the callbacks of its own steps of a loop, and none if it makes no step.

    The compiler may move a pure callback out of the loop, so that it runs all the same.
    """
    run = Composition(case, devices=2)

    def each(x: Any) -> Any:
        def body(carry: Any) -> Any:
            count, y = carry
            lax.fori_loop(0, 1, lambda _, z: run("io_callback", "second", run("io_callback", "first", z)), y)
            return count - 1, run("pure_callback", "pure", x)

        return lax.while_loop(lambda carry: carry[0] > 0, body, (x.astype(jnp.int32), x))[1]

    expected = [
        ran("pure", 0.0, need=Need.ANY_NUMBER),
        *(ran("first", 1.0, device=1), ran("second", 2.0, device=1), ran("pure", 1.0, device=1)),
    ]
    run.check(run.on_each_device(each), [0.0, 1.0], [[0.0, 2.0]], expected)


@case("shard_map", "call", "H4 H5 H9", minimum_devices=4, needs="shard_map")
def fuzz_shard_map_loops(case: Case) -> None:
    """Each device of a shard_map calls back in its own branch and at its own steps, beside a collective."""
    run = Composition(case, devices=4)

    def each(x: Any) -> Any:
        def step(index: Any, y: Any) -> Any:
            return run("io_callback", "io", run("id_tap", "tap", y, index), index)

        device = lax.axis_index(AXIS)
        y, _ = lax.scan(lambda y, _: (run("call", "total", y, lax.psum(y, AXIS)), None), x, None, length=2)
        y = lax.fori_loop(0, device, step, y)
        small = lambda y: run("debug_callback_ordered", "small", y)
        y = lax.cond(device > 1, lambda y: run("call", "large", y), small, y)
        return run("io_callback_ordered", "all", y, lax.all_gather(y, AXIS))

    in_branches = (("small", 3.0), ("small", 5.0), ("large", 7.0), ("large", 9.0))
    gathered = [3.0, 5.0, 8.0, 10.0]
    expected = [
        event
        for device in range(4)
        for event in (
            *(ran("total", device + 1.0, 10.0, device=device), ran("total", device + 2.0, 14.0, device=device)),
            *(ran(name, device + 3.0 + step, step, device=device) for step in range(device) for name in ("tap", "io")),
            ran(*in_branches[device], device=device),
            ran("all", gathered[device], gathered, device=device),
        )
    ]
    run.check(run.on_each_device(each), [1.0, 2.0, 3.0, 4.0], [[4.0, 6.0, 9.0, 11.0]], expected)
