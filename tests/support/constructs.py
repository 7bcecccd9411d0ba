"""Programs for every construct of JAX, made of callbacks with labels, and the order in which those should run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hostcb as hcb
from support.helpers import Record

Emit = Callable[..., None]
UNCHANGED = jax.ShapeDtypeStruct((), np.int32)


def emitter(record: Record, kinds: str = "mixed") -> Emit:
    """A function that calls back with a label and a number; taps and calls take turns, and nobody uses the results."""
    turns = itertools.count()

    def emit(label: str, number: Any = 0) -> None:
        number = jnp.int32(number)
        turn = next(turns) % 3 if kinds == "mixed" else {"tap": 0, "call": 1}[kinds]
        if turn == 0:
            hcb.id_tap(record.labelled(label), number)
        elif turn == 1:
            hcb.call(record.caller(label), number, result_shape=UNCHANGED)
        else:
            hcb.call(record.caller(label, lambda _: None), number)

    return emit


def emitted(record: Record) -> list[tuple[str, int]]:
    return [(seen.label, int(seen.arg)) for seen in record.all]


def straight(x: Any, emit: Emit) -> Any:
    for number in range(6):
        emit("s", number)
    return x


def nested_jit(x: Any, emit: Emit) -> Any:
    @jax.jit
    def inner(y):
        emit("inner")
        return jax.jit(lambda z: (emit("innermost"), z + 1)[1])(y)

    emit("before")
    x = inner(x)
    emit("after")
    return inner(x)


def cond(x: Any, emit: Emit) -> Any:
    def branch(label):
        return lambda y: (emit(label, 0), emit(label, 1), y + 1)[2]

    x = lax.cond(jnp.sum(x) > -1, branch("true"), branch("false"), x)
    emit("between")
    return lax.cond(jnp.sum(x) < -1, branch("true"), branch("false"), x)


def switch(x: Any, emit: Emit) -> Any:
    branches = [lambda y, label=label: (emit(label), y)[1] for label in "abc"]
    for index in (2, 0, 1, 7):
        x = lax.switch(jnp.int32(index) + (jnp.sum(x) < -1).astype(jnp.int32), branches, x)
    return x


def while_body(x: Any, emit: Emit) -> Any:
    def body(state):
        i, y = state
        emit("first", i)
        emit("second", i)
        return i + 1, y + 1

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]


def while_cond(x: Any, emit: Emit) -> Any:
    def condition(state):
        emit("cond", state[0])
        return state[0] < 2

    def body(state):
        emit("body", state[0])
        return state[0] + 1, state[1]

    return lax.while_loop(condition, body, (0, x))[1]


def while_cond_alone(x: Any, emit: Emit) -> Any:
    return lax.while_loop(lambda s: (emit("cond", s[0]), s[0] < 3)[1], lambda s: (s[0] + 1, s[1]), (0, x))[1]


def fori(x: Any, emit: Emit) -> Any:
    x = lax.fori_loop(0, 2, lambda i, y: (emit("static", i), y)[1], x)
    return lax.fori_loop(0, (jnp.sum(x) > -1).astype(jnp.int32) * 2, lambda i, y: (emit("dynamic", i), y)[1], x)


def scan(x: Any, emit: Emit) -> Any:
    def body(carry, i):
        emit("a", i)
        emit("b", i)
        return carry, None

    x, _ = lax.scan(body, x, jnp.arange(2))
    emit("between")
    x, _ = lax.scan(body, x, jnp.arange(3), unroll=2)
    return lax.scan(body, x, jnp.arange(2), reverse=True)[0]


def lax_map(x: Any, emit: Emit) -> Any:
    lax.map(lambda i: (emit("map", i), i)[1], jnp.arange(3))
    return x


def loops_in_loops(x: Any, emit: Emit) -> Any:
    def inner(i, carry):
        return lax.cond(i == 1, lambda y: (emit("one", i), y)[1], lambda y: (emit("other", i), y)[1], carry)

    def outer(state):
        n, y = state
        emit("outer", n)
        return n + 1, lax.fori_loop(0, 2, inner, y)

    return lax.while_loop(lambda state: state[0] < 2, outer, (0, x))[1]


def custom_jvp(x: Any, emit: Emit) -> Any:
    @jax.custom_jvp
    def function(y):
        emit("custom_jvp")
        return y * 2

    function.defjvp(lambda primals, tangents: (function(*primals), tangents[0] * 2))
    emit("before")
    x = function(x)
    emit("after")
    return x


def custom_vjp(x: Any, emit: Emit) -> Any:
    @jax.custom_vjp
    def function(y):
        emit("custom_vjp")
        return y * 2

    function.defvjp(lambda y: (function(y), None), lambda _, ct: (ct * 2,))
    emit("before")
    x = function(x)
    emit("after")
    return x


def checkpoint(x: Any, emit: Emit) -> Any:
    emit("before")
    x = jax.checkpoint(lambda y: (emit("checkpoint"), jnp.sin(y))[1])(x)
    emit("after")
    return x


def named_call(x: Any, emit: Emit) -> Any:
    emit("before")
    x = jax.named_call(lambda y: (emit("named"), y)[1], name="named")(x)
    emit("after")
    return x


def numbered(label: str, count: int) -> list[tuple[str, int]]:
    return [(label, number) for number in range(count)]


AB = [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
CONSTRUCTS: dict[Callable[[Any, Emit], Any], list[Any]] = {
    straight: numbered("s", 6),
    nested_jit: ["before", "inner", "innermost", "after", "inner", "innermost"],
    cond: [("true", 0), ("true", 1), "between", ("false", 0), ("false", 1)],
    switch: ["c", "a", "b", "c"],
    while_body: [(label, i) for i in range(3) for label in ("first", "second")],
    while_cond: [("cond", 0), ("body", 0), ("cond", 1), ("body", 1), ("cond", 2)],
    while_cond_alone: numbered("cond", 4),
    fori: numbered("static", 2) + numbered("dynamic", 2),
    scan: [*AB, "between", *AB, ("a", 2), ("b", 2), ("a", 1), ("b", 1), ("a", 0), ("b", 0)],
    lax_map: numbered("map", 3),
    loops_in_loops: [(label, i) for n in range(2) for label, i in (("outer", n), ("other", 0), ("one", 1))],
    custom_jvp: ["before", "custom_jvp", "after"],
    custom_vjp: ["before", "custom_vjp", "after"],
    checkpoint: ["before", "checkpoint", "after"],
    named_call: ["before", "named", "after"],
}


def expectation(construct: Callable[..., Any]) -> list[tuple[str, int]]:
    return [item if isinstance(item, tuple) else (item, 0) for item in CONSTRUCTS[construct]]
