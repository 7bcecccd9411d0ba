"""What functions get, which functions can be called, and callbacks inside of callbacks."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import debug
from jax.experimental import io_callback

from .running import attempt

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
TYPES = (
    *("bool_", "int8", "uint8", "int16", "uint32", "float16", "bfloat16", "complex64"),
    *("int4", "uint4", "int2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def told(x: Any) -> Any:
    for leaf in jax.tree.leaves(x):
        print(type(leaf).__name__, leaf.dtype, leaf.shape, leaf.devices())
    return x


def both(call: Callable[..., Any], *args: Any) -> None:
    attempt(call, *args)
    attempt(jax.jit(call), *args)


def of_type(name: str) -> Callable[[], None]:
    def program() -> None:
        x = jnp.ones(3, getattr(jnp, name))
        both(lambda x: jax.pure_callback(told, like(x), x), x)
        both(lambda x: io_callback(told, like(x), x, ordered=True), x)
        both(lambda x: debug.callback(told, x), x)

    return program


def numbers(x64: bool) -> Callable[[], None]:
    def program() -> None:
        with jax.enable_x64(x64):
            for value in (1, 1.5, True, 1j, np.arange(3), np.float64(1.5), {"a": np.arange(2), "b": [2.5]}):
                expected = jax.tree.map(like, value)
                attempt(lambda value=value, expected=expected: jax.pure_callback(told, expected, value))
                attempt(lambda value=value: debug.callback(told, value))
                attempt(lambda value=value: debug.print("{}", value))

    return program


class Model:
    offset = 4

    def method(self, x: Any) -> Any:
        return np.asarray(x) + 1

    def __call__(self, x: Any) -> Any:
        return np.asarray(x) + 2

    @staticmethod
    def static(x: Any) -> Any:
        return np.asarray(x) + 3

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return np.asarray(x) + cls.offset


def functions() -> None:
    partial = functools.partial(lambda a, x: np.asarray(x) + a, 5)
    for function in (Model().method, Model(), Model.static, Model.of_class, partial, np.sin, jnp.sin, jax.jit(jnp.cos)):
        both(lambda x, function=function: jax.pure_callback(function, NUMBER, x), jnp.float32(1))


def keywords() -> None:
    def scaled(x: Any, *, scale: Any, **more: Any) -> Any:
        return np.asarray(x) * np.asarray(scale) + len(more)

    both(lambda x: jax.pure_callback(scaled, NUMBER, x, scale=2.0, name=x), 3.0)
    # Names of hostcb's own parameters.
    for name in ("self", "function", "kind", "arguments", "expected", "text", "fmt"):
        named = functools.partial(lambda name, **given: np.float32(given[name]), name)
        both(lambda x, name=name, named=named: io_callback(named, NUMBER, **{name: x}), 2.0)
        if name != "fmt":
            both(lambda x, name=name: debug.print("{" + name + "}", **{name: x}), 2.0)


def uses_of_an_operand() -> None:
    def used(x: Any) -> Any:
        kept.append(x)
        print(
            x.item(0), x.tolist(), x.at[0].set(3), jnp.exp(x), len(x), f"{x[1]:.1f}", repr(x), isinstance(x, jax.Array)
        )
        print(type(pickle.loads(pickle.dumps(x))).__name__, copy.deepcopy(x), type(x) is type(jnp.ones(1)))
        return x * 2

    kept: list[Any] = []
    for start in (0.0, 5.0):
        both(lambda x: jax.pure_callback(used, like(x), x), start + jnp.arange(3.0))
        both(lambda x: debug.callback(used, x), start + jnp.arange(3.0))
    print(kept)


def jax_inside() -> None:
    inner = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, NUMBER, x))
    both(lambda x: jax.pure_callback(lambda x: inner(x) * 2, NUMBER, x), jnp.float32(1))
    both(lambda x: io_callback(jax.grad(lambda x: x**3), NUMBER, x, ordered=True), jnp.float32(2))
    both(lambda x: debug.callback(lambda x: debug.print("inside {}", x), x), 1.0)


def threads() -> None:
    program = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 2, NUMBER, x) + 1)
    results: dict[int, list[float]] = {}

    def run(number: int) -> None:
        results[number] = [float(program(jnp.float32(number + step))) for step in range(5)]

    started = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    print(sorted(results.items()))


def order() -> None:
    seen: list[int] = []

    @jax.jit
    def program(x: Any) -> None:
        for step in range(5):
            io_callback(lambda x: seen.append(int(x)), None, x + step, ordered=True)
            debug.print("{}", x + step, ordered=True)

    for start in range(3):
        program(10 * start)
    jax.effects_barrier()
    print(seen)


def identity() -> None:
    for function in (jax.pure_callback, io_callback, debug.callback, debug.print):
        print(function.__name__, function.__module__, inspect.signature(function), inspect.isfunction(function))
        print(pickle.loads(pickle.dumps(function)) is function, copy.copy(function) is function)


def guarded() -> None:
    with jax.transfer_guard("disallow"):
        both(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, NUMBER, x), jax.device_put(1.0))
        both(lambda x: debug.callback(told, x), jax.device_put(1.0))


PROGRAMS = {
    **{f"of_type_{name}": of_type(name) for name in TYPES},
    "numbers": numbers(x64=False),
    "numbers_of_64_bits": numbers(x64=True),
    "functions": functions,
    "keywords": keywords,
    "uses_of_an_operand": uses_of_an_operand,
    "jax_inside": jax_inside,
    "threads": threads,
    "order": order,
    "identity": identity,
    "guarded": guarded,
}
