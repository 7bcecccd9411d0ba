"""Pickle what a user sends to a worker, `pickled.py dump HOW FILE`, and run the copies, `pickled.py load HOW FILE`.

HOW is `alone` (without hostcb), `imported` or `installed`. Each prints, for every name, what its function returns, or
the error. What this file defines is pickled by value, since a worker does not have it.
"""

from __future__ import annotations

import copy
import functools
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

TASK, HOW, FILE = sys.argv[1:]
if HOW != "alone":
    import hostcb as hcb

    if HOW == "installed":
        hcb.install()

X = np.arange(8, dtype=np.float32)
SHAPE = jax.ShapeDtypeStruct((8,), np.float32)


def plus_one(x: Any) -> Any:
    return np.asarray(x) + np.float32(1)


def double(x: Any) -> Any:
    return 2 * x


def loops(x: Any) -> Any:
    x = jax.lax.fori_loop(0, 3, lambda i, x: x + i, x)
    x = jax.lax.while_loop(lambda x: x.sum() < 100, double, x)
    x = jax.lax.cond(x.sum() > 0, double, lambda x: x, x)
    return jax.lax.scan(lambda carry, y: (carry + y, carry), x.sum(), x)[1]


def used(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, jitted, after all that a program does with one."""
    jitted = jax.jit(function)
    for _ in range(3):
        jitted(X)
    jax.vmap(jitted)(np.stack([X, X]))
    jax.jvp(jitted, (X,), (X,))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    jitted(jax.device_put(X, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))))
    return jitted


def used_by_callbacks(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    jitted = jax.jit(function)
    for _ in range(3):
        jax.block_until_ready(jitted(X))
    return jitted


def derived() -> dict[str, Callable[[Any], Any]]:
    @jax.custom_jvp
    def with_jvp(x: Any) -> Any:
        return x * x

    with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), 3 * primals[0] * tangents[0]))

    @jax.custom_vjp
    def with_vjp(x: Any) -> Any:
        return x * x

    with_vjp.defvjp(lambda x: (x * x, x), lambda x, cotangent: (3 * x * cotangent,))

    class Model:
        step = staticmethod(jax.jit(double))

        def __init__(self) -> None:
            self.steps = [jax.jit(plus) for plus in (double, jnp.sin)]

        def __call__(self, x: Any) -> Any:
            return self.step(self.steps[1](self.steps[0](x)))

    return {
        "custom_jvp": jax.jit(jax.grad(lambda x: with_jvp(x).sum())),
        "custom_vjp": jax.jit(jax.grad(lambda x: with_vjp(x).sum())),
        "object of a class": Model(),
    }


def without_callbacks() -> dict[str, Callable[[Any], Any]]:
    jitted = jax.jit(double)
    return {
        "fresh": jitted,
        "used": used(double),
        "loops, fresh": jax.jit(loops),
        "loops, used": used(loops),
        "sin": jnp.sin,
        "relu": jax.nn.relu,
        "closure": lambda x: jitted(x) + 1,
        "partial": functools.partial(jax.jit(lambda y, x: x + y), 2.0),
        "Partial": jax.tree_util.Partial(jax.jit(lambda y, x: x + y), 2.0),
        "grad": jax.grad(lambda x: jitted(x).sum()),
        "vmap": jax.vmap(jitted),
        "checkpoint": jax.checkpoint(loops),
        "static": functools.partial(jax.jit(lambda x, n: x * n, static_argnames="n"), n=3),
        **derived(),
    }


def with_jaxs_callbacks() -> dict[str, Callable[[Any], Any]]:
    def program(x: Any) -> Any:
        jax.debug.callback(lambda x: None, x)
        x = jax.pure_callback(plus_one, SHAPE, x)
        return io_callback(plus_one, SHAPE, x, ordered=True)

    return {"jax's callbacks, fresh": jax.jit(program), "jax's callbacks, used": used_by_callbacks(program)}


def with_hostcbs_callbacks() -> dict[str, Callable[[Any], Any]]:
    def fill(context: Any, out: Any, value: Any) -> None:
        np.asarray(out)[...] = plus_one(value)

    def program(x: Any) -> Any:
        hcb.debug.print("{}", x.sum())
        hcb.debug.callback(lambda x: None, x, ordered=True)
        x = hcb.id_tap(lambda x, transforms: None, x)
        x = hcb.call(plus_one, x, result_shape=SHAPE)
        x = hcb.pure_callback(hcb.jax_arrays(lambda x: x.at[0].set(7)), SHAPE, x)
        x = hcb.buffer_callback(fill, SHAPE)(x)
        return hcb.io_callback(plus_one, SHAPE, x)

    two_calls = hcb.debug.callback(ordered=True)
    return {
        "hostcb's callbacks, fresh": jax.jit(program),
        "hostcb's callbacks, used": used_by_callbacks(program),
        "hostcb's functions": functools.partial(hcb.pure_callback, plus_one, SHAPE),
        "hostcb's two calls": lambda x: two_calls(lambda x: None, x) or x,
    }


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return np.asarray(function()).tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def dump() -> dict[str, Any]:
    programs = without_callbacks() | with_jaxs_callbacks() | (with_hostcbs_callbacks() if HOW == "imported" else {})
    pickles, outcomes = {}, {}
    for name, function in programs.items():
        try:
            pickles[name] = cloudpickle.dumps(function)
            copy.deepcopy(function)
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        else:
            outcomes[name] = outcome(functools.partial(function, X))
    Path(FILE).write_bytes(pickle.dumps(pickles))
    return outcomes


def load() -> dict[str, Any]:
    pickles = pickle.loads(Path(FILE).read_bytes())
    return {name: outcome(lambda data=data: pickle.loads(data)(X)) for name, data in pickles.items()}


print(json.dumps({"dump": dump, "load": load}[TASK]()))
