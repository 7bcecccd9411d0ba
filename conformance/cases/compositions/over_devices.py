"""Callbacks of several kinds beside collectives, and in loops and branches that differ between devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..harness.case import Case, case
from ..harness.composing import Composition, batched, ran

AXIS = "devices"


def _ring(devices: int) -> list[tuple[int, int]]:
    """Each device sends to the next one."""
    return [(device, (device + 1) % devices) for device in range(devices)]


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
