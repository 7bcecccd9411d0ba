"""Batching, derivatives, control flow and the stages of jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import debug, lax
from jax.experimental import checkify, io_callback

from .running import attempt

NUMBER = jax.ShapeDtypeStruct((), jnp.float32)
ONE = jnp.float32(1)
THREE = jnp.arange(3.0)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def sine(x: Any, method: str | None = None) -> Any:
    return jax.pure_callback(np.sin, like(x), x, vmap_method=method)


@jax.custom_jvp
def smooth(x: Any) -> Any:
    return sine(x, "expand_dims")


smooth.defjvp(lambda primals, tangents: (smooth(*primals), tangents[0] * smooth(primals[0] + np.pi / 2)))


@jax.custom_vjp
def reverse(x: Any) -> Any:
    return sine(x, "sequential")


reverse.defvjp(lambda x: (reverse(x), x), lambda x, cotangent: (cotangent * sine(x + np.pi / 2, "sequential"),))


def noted(x: Any) -> Any:
    debug.print("x is {}", x, ordered=True)
    return jnp.sin(x)


def methods() -> None:
    for method in (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized", "?"):
        shapes: list[Any] = []

        def add(x: Any, y: Any, shapes: list[Any] = shapes) -> Any:
            shapes.append((x.shape, y.shape))
            return np.asarray(x) + np.asarray(y)

        def call(x: Any, y: Any, add: Any = add, method: Any = method) -> Any:
            return jax.pure_callback(add, jax.ShapeDtypeStruct((2,), jnp.float32), x, y, vmap_method=method)

        attempt(jax.jit(jax.vmap(call, in_axes=(0, None))), jnp.ones((3, 2)), jnp.ones(2))
        attempt(jax.vmap(jax.vmap(call, in_axes=(0, None)), in_axes=(None, 0)), jnp.ones((3, 2)), jnp.ones((2, 2)))
        print(sorted(shapes))


def effects_under_vmap() -> None:
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return x

    attempt(jax.vmap(lambda x: io_callback(note, NUMBER, x)), THREE)
    attempt(jax.vmap(lambda x: io_callback(note, NUMBER, x, ordered=True)), THREE)
    attempt(jax.jit(jax.vmap(lambda x: debug.callback(note, x))), THREE)
    print(sorted(seen))


def derivatives_of(function: Callable[[Any], Any]) -> Callable[[], None]:
    def program() -> None:
        for derivative in (jax.grad, jax.jacrev, jax.value_and_grad):
            attempt(derivative(function), ONE)
            attempt(jax.jit(derivative(jax.checkpoint(function))), ONE)
            attempt(jax.jit(jax.vmap(derivative(function))), THREE)

    return program


def forward_derivatives() -> None:
    for derivative in (jax.jacfwd, jax.hessian, lambda f: lambda x: jax.linearize(f, x)[1](x)):
        attempt(derivative(smooth), ONE)
        attempt(derivative(noted), ONE)
    attempt(lambda x: jax.vjp(noted, x)[1](x), ONE)


def refused_derivatives() -> None:
    for call in (
        sine,
        lambda x: io_callback(np.sin, NUMBER, x),
        lambda x: io_callback(np.sin, NUMBER, x, ordered=True),
    ):
        attempt(lambda x, call=call: type(jax.grad(call)(x)), ONE)


def in_scan() -> None:
    seen: list[float] = []

    def step(carry: Any, x: Any) -> Any:
        io_callback(lambda x: seen.append(float(x)), None, x, ordered=True)
        total = io_callback(lambda carry, x: np.float32(carry + x), NUMBER, carry, x, ordered=True)
        return total, sine(total)

    attempt(lambda: lax.scan(step, ONE, THREE))
    attempt(jax.jit(lambda: lax.scan(step, ONE, THREE, reverse=True, unroll=2)))
    print(seen)


def in_loops() -> None:
    def body(count: Any) -> Any:
        debug.print("at {}", count, ordered=True)
        return count + 1

    def goes_on(count: Any) -> Any:
        return jax.pure_callback(lambda count: np.asarray(count) < 3, jax.ShapeDtypeStruct((), bool), count)

    attempt(jax.jit(lambda: lax.while_loop(goes_on, body, 0)))
    attempt(lambda: lax.fori_loop(0, 3, lambda i, x: sine(x) + i, ONE))
    attempt(lambda: lax.map(lambda x: sine(x, "sequential"), THREE, batch_size=2))


def in_branches() -> None:
    for predicate in (True, False):
        attempt(jax.jit(lambda p, x: lax.cond(p, lambda x: io_callback(np.cos, NUMBER, x), sine, x)), predicate, ONE)
    attempt(jax.vmap(lambda p, x: lax.cond(p, lambda x: sine(x, "sequential"), jnp.cos, x)), THREE > 0, THREE)
    attempt(jax.vmap(lambda p, x: lax.cond(p, lambda x: io_callback(np.cos, NUMBER, x), sine, x)), THREE > 0, THREE)


def stages() -> None:
    program = jax.jit(lambda x: sine(x) + io_callback(lambda: np.float32(1), NUMBER, ordered=True))
    compiled = program.lower(ONE).compile()
    print(compiled(ONE), compiled(2 * ONE), jax.eval_shape(program, ONE), len(jax.make_jaxpr(program)(ONE).eqns))
    called: list[None] = []
    print(jax.eval_shape(lambda x: io_callback(lambda: called.append(None), None) or sine(x), ONE), called)


def without_jit() -> None:
    with jax.disable_jit():
        attempt(jax.jit(lambda x: sine(x) + io_callback(lambda: np.float32(1), NUMBER)), ONE)
        attempt(lambda: lax.scan(lambda carry, x: (carry + x, debug.print("{}", x)), 0.0, THREE))
        attempt(jax.grad(reverse), 1.0)


def nans() -> None:
    with jax.debug_nans(True):
        attempt(lambda x: jax.pure_callback(lambda x: np.float32(np.nan), NUMBER, x), ONE)
        attempt(jax.jit(lambda x: io_callback(lambda x: np.float32(np.nan), NUMBER, x, ordered=True)), ONE)


def unused() -> None:
    called: list[str] = []
    jax.pure_callback(lambda x: called.append("none"), None, ONE)
    jax.pure_callback(lambda x: [called.append("empty")][:0], (), ONE)
    jax.jit(lambda x: (jax.pure_callback(lambda x: called.append("pure"), NUMBER, x), x)[1])(ONE)
    jax.jit(lambda x: (io_callback(lambda x: called.append("io"), None, x), x)[1])(ONE)
    jax.effects_barrier()
    print(called)


def beside_checks() -> None:
    def checked(x: Any) -> Any:
        checkify.check(x > 0, "planted {}", x)
        debug.print("x is {}", x)
        return sine(x)

    for x in (1.0, -1.0):
        for errors in (checkify.user_checks, checkify.all_checks):
            error, y = jax.jit(checkify.checkify(checked, errors=errors))(x)
            print("planted" in str(error.get()), y)


PROGRAMS = {
    "methods": methods,
    "effects_under_vmap": effects_under_vmap,
    "derivatives_of_custom_jvp": derivatives_of(smooth),
    "derivatives_of_custom_vjp": derivatives_of(reverse),
    "derivatives_around_prints": derivatives_of(noted),
    "forward_derivatives": forward_derivatives,
    "refused_derivatives": refused_derivatives,
    "in_scan": in_scan,
    "in_loops": in_loops,
    "in_branches": in_branches,
    "stages": stages,
    "without_jit": without_jit,
    "nans": nans,
    "unused": unused,
    "beside_checks": beside_checks,
}
