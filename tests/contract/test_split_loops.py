"""Callbacks in a while_loop that JAX splits for a derivative, and in a forward rule that JAX would drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb

SCALAR = jax.ShapeDtypeStruct((), np.float32)
Note = Callable[..., Any]

CALLBACKS: dict[str, Callable[[Note, Any], Any]] = {
    "id_tap": lambda note, x: hostcb.id_tap(note, x),
    "call": lambda note, x: hostcb.call(note, x, result_shape=SCALAR),
    "call without results": lambda note, x: hostcb.call(lambda x: [note(x), None][1], x, result_shape=None),
    "io_callback": lambda note, x: hostcb.io_callback(note, SCALAR, x),
    "ordered io_callback": lambda note, x: hostcb.io_callback(note, SCALAR, x, ordered=True),
    "debug.callback": lambda note, x: hostcb.debug.callback(note, x),
    "ordered debug.callback": lambda note, x: hostcb.debug.callback(note, x, ordered=True),
}
kinds = pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS)


class Seen(list[float]):
    """A host function that keeps its operands, and returns them."""

    def __call__(self, x: Any, *_: Any) -> Any:
        self.append(float(x))
        return np.asarray(x)

    def take(self) -> list[float]:
        hostcb.barrier_wait()
        taken = [*self]
        self.clear()
        return taken


def _solver(host: Callable[[Any], Any], in_condition: bool = False) -> Callable[[Any], Any]:
    """Doubles its operand three times; nothing of it depends on what the callback returns."""

    def condition(carry: Any) -> Any:
        if in_condition:
            host(carry[1])
        return carry[0] < 3

    def step(carry: Any) -> Any:
        if not in_condition:
            host(carry[1])
        return carry[0] + 1, carry[1] * 2

    return lambda x: jax.lax.while_loop(condition, step, (0, x))[1]


def _scanned(solve: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(carry: Any, _: Any) -> Any:
        return carry * jax.lax.stop_gradient(solve(jnp.float32(1)) * carry / carry), None

    return lambda x: jax.lax.scan(step, x, None, length=1)[0]


AROUND: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "its result": lambda solve: lambda x: x * jax.lax.stop_gradient(solve(x)),
    "jit": lambda solve: jax.jit(lambda x: x * jax.lax.stop_gradient(solve(x))),
    "a comparison": lambda solve: lambda x: x * jnp.where(solve(x) > 1, 8.0, 0.0),
    "a branch": lambda solve: (
        lambda x: jax.lax.cond(x > 0, lambda x: x * jax.lax.stop_gradient(solve(x)), lambda x: x, x)
    ),
    "a scan": _scanned,
}


@pytest.mark.contract("H4", "H6", "X3", "X4")
@pytest.mark.parametrize("in_condition", [False, True], ids=["body", "condition"])
@pytest.mark.parametrize(
    ("name", "around"),
    [
        *((name, "its result") for name in CALLBACKS),
        *((name, each) for name in ("id_tap", "io_callback") for each in AROUND if each != "its result"),
    ],
)
def test_a_loop_runs_once_if_nothing_needs_its_derivative(name: str, in_condition: bool, around: str) -> None:
    seen = Seen()
    solve = _solver(lambda x: CALLBACKS[name](seen, jax.lax.stop_gradient(x)), in_condition)
    assert jax.grad(AROUND[around](solve))(1.0) == 8
    assert sorted(seen.take()) == [1, 2, 4, *([8] if in_condition else [])]


@pytest.mark.contract("H6", "X3")
@kinds
def test_a_linear_function_runs_no_callback_of_the_loop_again(callback: Callable[[Note, Any], Any]) -> None:
    seen = Seen()
    result, linear = jax.linearize(_solver(lambda x: callback(seen, jax.lax.stop_gradient(x))), 1.0)
    assert result == 8 and sorted(seen.take()) == [1, 2, 4]
    assert (linear(1.0), linear(2.0)) == (8, 16)
    assert seen.take() == []


def _powers(callback: Callable[[Note, Any], Any], seen: Note) -> Callable[[Any], Any]:
    """A loop whose derivative needs what the callback returns."""

    def step(carry: Any) -> Any:
        return carry[0] + 1, carry[1] * callback(seen, jax.lax.stop_gradient(carry[1]))

    return lambda x: jax.lax.while_loop(lambda carry: carry[0] < 2, step, (0, x))[1]


@pytest.mark.contract("X3")
@pytest.mark.parametrize("name", ["call", "io_callback", "ordered io_callback"])
def test_a_derivative_that_needs_the_result_of_a_callback_in_a_loop_is_refused(name: str) -> None:
    seen = Seen()
    function = _powers(CALLBACKS[name], seen)
    assert jax.grad(lambda x: x * jax.lax.stop_gradient(function(x)))(2.0) == 16
    assert seen.take() == [2, 4]
    assert jax.jvp(function, (2.0,), (1.0,)) == (16, 8)
    assert seen.take() == [2, 4]
    _, linear = jax.linearize(function, 2.0)
    seen.take()
    with pytest.raises(NotImplementedError, match="whose derivative needs the callback's result"):
        linear(1.0)
    assert seen.take() == []


@pytest.mark.contract("X2")
def test_a_pure_callback_runs_again_for_the_derivative() -> None:
    function = _powers(lambda note, x: hostcb.pure_callback(note, SCALAR, x), Seen())
    result, linear = jax.linearize(function, 2.0)
    assert (result, linear(1.0)) == (16, 8)


@pytest.mark.contract("H6")
def test_a_tap_of_tangents_in_a_loop_runs_for_each_tangent() -> None:
    seen, of_tangents = Seen(), Seen()

    @jax.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    @double.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return double(hostcb.id_tap(seen, primals[0])), hostcb.id_tap(of_tangents, tangents[0]) * 2

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, double(c[1])), (0, x))[1]

    result, linear = jax.linearize(loop, 1.0)
    assert (result, seen.take(), of_tangents.take()) == (4, [1, 2], [])
    assert (linear(3.0), seen.take(), of_tangents.take()) == (12, [], [3, 6])


@pytest.mark.contract("H6")
@pytest.mark.parametrize("around", [lambda tapped: tapped, jax.jit, jax.checkpoint], ids=["alone", "jit", "checkpoint"])
def test_one_function_for_values_and_tangents_in_a_loop_is_refused(around: Any) -> None:
    seen = Seen()

    def tapped(x: Any) -> Any:
        return hostcb.id_tap(seen, x)

    shared = around(tapped)

    @jax.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    @double.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return double(shared(primals[0])), shared(tangents[0]) * 2

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, double(c[1])), (0, x))[1]

    with pytest.raises(NotImplementedError, match="both on tangents and on other values"):
        jax.linearize(loop, 1.0)
    assert jax.jvp(loop, (1.0,), (1.0,)) == (4, 4)


@pytest.mark.contract("H6")
@pytest.mark.parametrize("differentiated", [False, True], ids=["stopped before", "stopped after"])
@pytest.mark.parametrize("name", ["call", "call without results", "id_tap"])
def test_a_call_in_a_loop_in_a_checkpoint_runs_once(name: str, differentiated: bool) -> None:
    seen = Seen()
    solve = _solver(lambda x: CALLBACKS[name](seen, jax.lax.stop_gradient(x)))

    @jax.checkpoint
    def function(x: Any) -> Any:
        return x * jax.lax.stop_gradient(solve(x if differentiated else jax.lax.stop_gradient(x)))

    assert jax.jit(jax.grad(function))(1.0) == 8
    # A checkpoint taps again when the forward pass runs again.
    assert sorted(seen.take()) == sorted([1, 2, 4] * (2 if name == "id_tap" else 1))


@pytest.mark.contract("H6")
def test_the_result_of_a_call_in_a_loop_in_a_checkpoint_is_kept() -> None:
    seen = Seen()

    @jax.checkpoint
    def function(x: Any) -> Any:
        start = jax.lax.stop_gradient(x)
        scale = jax.lax.while_loop(lambda c: c < 3, lambda c: hostcb.call(seen, c, result_shape=SCALAR) + 1, start)
        return jnp.sin(x * scale)

    assert jax.jit(jax.grad(function))(0.0) == 3
    assert seen.take() == [0, 1, 2]


@pytest.mark.contract("H4", "X3", "X4")
@kinds
@pytest.mark.parametrize("scanned", [False, True], ids=["alone", "in a scan"])
def test_a_forward_rule_with_a_callback_is_kept(callback: Callable[[Note, Any], Any], scanned: bool) -> None:
    """JAX puts the function in place of a rule with optimize_remat=True whose residuals are not used."""
    seen = Seen()

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    def forward(x: Any) -> Any:
        callback(seen, x)
        return x * 2, None

    double.defvjp(forward, lambda _, cotangent: (cotangent * 2,), optimize_remat=True)
    function = (lambda x: jax.lax.scan(lambda c, _: (double(c), None), x, None, length=2)[0]) if scanned else double
    assert jax.jit(jax.grad(function))(3.0) == (4 if scanned else 2)
    assert sorted(seen.take()) == ([3, 6] if scanned else [3])
    assert jax.jit(function)(3.0) == (12 if scanned else 6)
    assert seen.take() == []


@pytest.mark.contract("H6", "X3")
@pytest.mark.parametrize("name", ["id_tap", "call", "io_callback"])
def test_a_loop_in_a_loop_runs_once_if_nothing_needs_its_derivative(name: str) -> None:
    seen = Seen()
    inner = _solver(lambda x: CALLBACKS[name](seen, jax.lax.stop_gradient(x)))

    def outer(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c < 10, lambda c: inner(c * 0 + 1) + c, x)

    assert jax.grad(lambda x: x * jax.lax.stop_gradient(outer(x)))(1.0) == 17
    assert sorted(seen.take()) == [1, 1, 2, 2, 4, 4]


@pytest.mark.contract("H4", "H6", "X3")
@pytest.mark.parametrize("name", ["id_tap", "call", "io_callback"])
def test_a_branch_of_a_loop_calls_back_once_if_nothing_needs_its_derivative(name: str) -> None:
    seen = Seen()

    def step(carry: Any) -> Any:
        number, x = carry
        first = jax.lax.stop_gradient(x)
        more = jax.lax.cond(number > 1, lambda x: jnp.asarray(CALLBACKS[name](seen, x)), lambda x: x * 2, first)
        return number + 1, x + more

    def solve(x: Any) -> Any:
        return jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1]

    assert jax.jit(jax.grad(lambda x: x * (solve(x) > 0)))(1.0) == 1
    assert seen.take() == [9]


@pytest.mark.contract("H6")
def test_a_tap_in_a_checkpoint_in_a_loop_runs_once_a_step() -> None:
    seen = Seen()

    def solve(x: Any) -> Any:
        step = jax.checkpoint(lambda c: (c[0] + 1, hostcb.id_tap(seen, c[1]) * 2))
        return jax.lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1]

    assert jax.grad(lambda x: x * jax.lax.stop_gradient(solve(x)))(1.0) == 8
    assert seen.take() == [1, 2, 4]
    result, linear = jax.linearize(solve, 1.0)
    assert (result, seen.take(), linear(1.0), seen.take()) == (8, [1, 2, 4], 8, [])


@pytest.mark.contract("H3", "H6")
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.everything_saveable], ids=["no policy", "all saved"])
@pytest.mark.parametrize(
    "transform", [jax.grad, lambda f: lambda x: jax.linearize(f, x)[1](1.0)], ids=["grad", "linear"]
)
def test_the_results_of_a_loop_with_tangents_and_calls_in_a_checkpoint_are_right(policy: Any, transform: Any) -> None:
    """The derivative needs what the loop made of the calls' results, beside the tangent of another carry."""
    seen = Seen()

    def function(x: Any, callback: Any) -> Any:
        def step(carry: Any) -> Any:
            number, y, z = carry
            return number + 1, callback(jax.lax.stop_gradient(y)) + 1, jnp.sin(z)

        start = (0, jax.lax.stop_gradient(x), x)
        _, y, z = jax.lax.while_loop(lambda carry: carry[0] < 3, step, start)
        return jnp.sin(y * x) * jax.lax.stop_gradient(z)

    expected = jax.grad(lambda x: function(x, lambda y: y))(0.7)
    of_host = jax.checkpoint(lambda x: function(x, lambda y: hostcb.call(seen, y, result_shape=SCALAR)), policy=policy)
    np.testing.assert_allclose(transform(of_host)(0.7), expected, rtol=1e-6)
    np.testing.assert_allclose(seen.take(), [0.7, 1.7, 2.7], rtol=1e-6)


@pytest.mark.contract("H4", "H6")
def test_a_function_with_a_rule_in_a_loop_in_a_checkpoint_runs_once_or_is_refused() -> None:
    seen = Seen()
    double = jax.custom_vjp(lambda x: hostcb.id_tap(seen, x) * 2)
    double.defvjp(lambda x: (double(x), None), lambda _, cotangent: (cotangent * 2,))

    def grad(stopped: Callable[[Any], Any]) -> Any:
        solve = jax.checkpoint(lambda x: x * jax.lax.stop_gradient(_doubled(double, stopped(x))))
        return jax.jit(jax.grad(solve))(1.0)

    assert grad(jax.lax.stop_gradient) == 8
    assert seen.take() == [1, 2, 4]
    with pytest.raises(NotImplementedError, match="a function with a rule for derivatives that calls back"):
        grad(lambda x: x)


def _doubled(double: Callable[[Any], Any], x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, double(c[1])), (0, x))[1]
