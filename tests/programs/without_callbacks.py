"""Print what JAX lowers programs without hostcb's callbacks to; with the argument `with`, after importing hostcb.

They are of the primitives whose rules hostcb stands before, some with JAX's own ordered callbacks.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

X = jnp.arange(4.0)
MESH = jax.make_mesh((2, 1), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
HOST = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")


def called(x: Any) -> Any:
    io_callback(lambda x: None, None, x, ordered=True)
    return x


@functools.partial(lax.composite, name="tests.double")
def double(x: Any) -> Any:
    return 2 * x


def scaled(x: Any) -> Any:
    return jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, x: r * x, 2.0, x)


def loop_with_ref(x: Any) -> Any:
    ref = jax.new_ref(x)

    def step(count: Any) -> Any:
        ref[...] += 1
        return count + 1

    return lax.while_loop(lambda count: (ref[...][0] < 3) & (count < 9), step, 0), ref[...]


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, y: (jnp.sin(c) * jnp.cos(2.0) * y, c), x, jnp.ones((3, 4)))[0].sum()


def without_result(x: Any) -> Any:
    def call() -> list[Any]:
        called(x)
        return []

    lax.cond(x[0] > 0, call, lambda: [])
    return x


def mapped(function: Any, **options: Any) -> Any:
    return jax.shard_map(function, mesh=MESH, **options)


PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "cond": (lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), {}),
    "ordered cond": (lambda x: lax.cond(x[0] > 0, called, jnp.cos, x), {}),
    "ordered cond without result": (without_result, {}),
    "cond by platform": (lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), {}),
    "batched cond": (jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)), {}),
    "while": (lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x), {}),
    "ordered while": (lambda x: lax.while_loop(lambda c: called(c)[0] < 3, lambda c: c + 1, x), {}),
    "batched while": (jax.vmap(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)), {}),
    "while with a mutable array": (loop_with_ref, {}),
    "scan": (jax.grad(scanned), {}),
    "checkpoint": (jax.grad(jax.checkpoint(scanned)), {}),
    "linear_call": (scaled, {}),
    "composite": (double, {}),
    "memory kind": (double, {"out_shardings": HOST}),
    "shard_map": (mapped(lambda x: lax.psum(x, "a"), in_specs=P("a"), out_specs=P()), {}),
    "ordered shard_map": (mapped(called, in_specs=P("a"), out_specs=P("a")), {}),
    "shard_map over one axis": (
        mapped(lambda x: lax.psum(x, "a"), in_specs=P("a"), out_specs=P(), axis_names={"a"}),
        {},
    ),
    "shard_map without operand": (
        lambda x: mapped(lambda: lax.axis_index("a")[None], in_specs=(), out_specs=P("a"))(),
        {},
    ),
}


def main() -> None:
    if "with" in sys.argv:
        import hostcb  # noqa: F401
    for name, (program, options) in PROGRAMS.items():
        # JAX's callbacks have addresses.
        text = re.sub(r"\d{6,}", "address", jax.jit(program, **options).lower(X).as_text())
        print(f"{name}\n{text}")


if __name__ == "__main__":
    main()
