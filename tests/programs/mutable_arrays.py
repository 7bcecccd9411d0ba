"""Give a mutable array to each kind of callback in each place, and print what the callbacks saw, as lines of JSON.

Everywhere [0, 1] is changed by 1, seen, and changed by 10. A program of its own: with JAX 0.10.2 tracing never ended.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import sessions

import hostcb as hcb

SHAPE = jax.ShapeDtypeStruct((2,), np.float32)
seen: list[Any] = []


def see(value: Any, *_: Any) -> None:
    seen.append(jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), value))


def give_back(value: Any) -> Any:
    see(value)
    return value


class Stream(io.StringIO):
    """What `id_print` writes into: `[1. 2.]` and a line break."""

    def write(self, text: str) -> int:
        see([float(word) for word in text.strip("[]\n ").split()])
        return len(text)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Printed:
    """What notes its value when it is printed."""

    value: Any

    def __format__(self, _: str) -> str:
        see(self.value)
        return "printed"


KINDS: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda r: hcb.id_tap(see, r, result=0.0),
    "id_print": lambda r: hcb.id_print(r, result=0.0, output_stream=Stream()),
    "call": lambda r: hcb.call(give_back, r, result_shape=r),
    "pure_callback": lambda r: hcb.pure_callback(give_back, SHAPE, r),
    "io_callback": lambda r: hcb.io_callback(give_back, SHAPE, r),
    "io_callback ordered": lambda r: hcb.io_callback(give_back, SHAPE, r, ordered=True),
    "debug.callback": lambda r: hcb.debug.callback(see, r),
    "debug.callback ordered": lambda r: hcb.debug.callback(see, r, ordered=True),
    "debug.callback by name": lambda r: hcb.debug.callback(lambda value: see(value), value=r),
    "debug.print": lambda r: hcb.debug.print("{}", Printed(r)),
    "debug.print ordered": lambda r: hcb.debug.print("{r}", r=Printed(r), ordered=True),
}
# They refuse to be differentiated, and so to be given what is.
UNDIFFERENTIATED = ("call", "pure_callback", "io_callback", "io_callback ordered")


def changed(callback: Callable[[Any], Any], r: Any) -> Any:
    """A number made of the callback's result, without which a pure one need not be called."""
    r[...] += 1
    result = callback(r)
    r[...] += 10
    return jnp.float32(0.0 if result is None else jnp.sum(result))


def fresh() -> Any:
    return jax.new_ref(jnp.arange(2.0))


def argument(callback: Callable[[Any], Any]) -> Any:
    return jax.jit(lambda r: changed(callback, r))(fresh())


def closed_over(callback: Callable[[Any], Any]) -> Any:
    r = fresh()
    return jax.jit(lambda: changed(callback, r))()


def made_inside(callback: Callable[[Any], Any]) -> Any:
    return jax.jit(lambda: changed(callback, fresh()))()


def eager(callback: Callable[[Any], Any]) -> Any:
    return changed(callback, fresh())


def nested_jit(callback: Callable[[Any], Any]) -> Any:
    return jax.jit(lambda r: jax.jit(lambda: changed(callback, r))())(fresh())


def part(callback: Callable[[Any], Any]) -> Any:
    def program(r: Any) -> Any:
        r[0] += 1
        result = callback(r.at[0])
        r[0] += 10
        return 0.0 if result is None else jnp.sum(result)

    return jax.jit(program)(jax.new_ref(jnp.stack([jnp.arange(2.0), jnp.zeros(2)])))


def scan(callback: Callable[[Any], Any]) -> Any:
    r = fresh()
    return jax.jit(lambda: jax.lax.scan(lambda _, x: (changed(callback, r), x), jnp.float32(0), None, length=2)[0])()


def fori_loop(callback: Callable[[Any], Any]) -> Any:
    r = fresh()
    return jax.jit(lambda: jax.lax.fori_loop(0, 2, lambda _, total: total + changed(callback, r), jnp.float32(0)))()


def while_loop(callback: Callable[[Any], Any]) -> Any:
    r = fresh()

    def body(carry: Any) -> Any:
        return carry[0] + 1, carry[1] + changed(callback, r)

    return jax.jit(lambda: jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, jnp.float32(0))))()


def cond(callback: Callable[[Any], Any]) -> Any:
    r = fresh()
    return jax.jit(lambda p: jax.lax.cond(p, lambda: changed(callback, r), lambda: jnp.float32(0)))(True)


def grad(callback: Callable[[Any], Any]) -> Any:
    def program(x: Any) -> Any:
        r = jax.new_ref(x)
        return changed(callback, r) + jnp.sum(r[...])

    return jax.grad(program)(jnp.arange(2.0))


def grad_of_scan(callback: Callable[[Any], Any]) -> Any:
    r = fresh()

    def program(x: Any) -> Any:
        return jax.lax.scan(lambda total, _: (total * x, changed(callback, r)), x, None, length=2)[0]

    return jax.jit(jax.grad(program))(2.0)


def shard_map(callback: Callable[[Any], Any]) -> Any:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()
    mapped = jax.shard_map(
        lambda x: changed(callback, jax.new_ref(x)), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    return jax.jit(mapped)(jnp.arange(2.0))


PLACES = (
    argument, closed_over, made_inside, eager, nested_jit, part, scan, fori_loop, while_loop, cond, grad, grad_of_scan,
    shard_map,
)  # fmt: skip


# Each kind meets every second place.
CASES = [
    (kind, place)
    for number, kind in enumerate(KINDS)
    for turn, place in enumerate(PLACES)
    if sessions.THOROUGH or (number + turn) % 2 == 0
]


def main() -> None:
    for kind, place in CASES:
        seen.clear()
        error = None
        try:
            jax.block_until_ready(place(KINDS[kind]))
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"
        hcb.barrier_wait()
        print(json.dumps([kind, place.__name__, seen, error]), flush=True)


if __name__ == "__main__":
    main()
