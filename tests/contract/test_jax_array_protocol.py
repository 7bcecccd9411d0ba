"""H1, X1: an operand with `__jax_array__`, such as a variable of a layer library, arrives as its array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from support.helpers import STAGES
from support.pairwise import in_turns
from test_wide_values import X, kinds, sharded

import hostcb as hcb

SCALAR = jax.ShapeDtypeStruct((), np.float32)


class Variable:
    """A variable of a layer library."""

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value


class Broken(Variable):
    def __jax_array__(self) -> Any:
        raise RuntimeError("planted: no value")


@jax.tree_util.register_pytree_node_class
class Registered(Variable):
    """A container of its array for JAX's transformations."""

    def tree_flatten(self) -> tuple[Any, None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Registered:
        return cls(*children)


KINDS = pytest.mark.parametrize("kind", kinds([]))

TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "eager": lambda f: f(X[1]),
    "jit": lambda f: jax.jit(f)(X[1]),
    "vmap": lambda f: jax.vmap(f)(X[1:2]),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), 0, X[1:2]),
    "grad": lambda f: jax.grad(lambda x: f(lax.stop_gradient(x)))(1.0),
    "shard_map": sharded,
}


@pytest.mark.contract("H1", "X1", "B1", "D1")
@in_turns(("kind", "transform"), kinds([]), TRANSFORMS, times=2)
def test_the_value_arrives(kind: str, transform: str) -> None:
    seen: list[Any] = []

    def program(x: Any) -> Any:
        kinds(seen)[kind](x, Variable(x + 1))
        results = jax.tree.leaves(kinds(seen)[kind]({"tree": [x]}, Variable(x + 1)))
        return x + sum(jnp.sum(each) * 0 for each in results[-1:])

    TRANSFORMS[transform](program)
    jax.effects_barrier()
    assert seen, "it should call back"
    others: dict[str, list[Any]] = {"vmap": [2.0, [2.0]], "shard_map": [[1.0], [2.0]]}
    expected = others.get(transform, [2.0])
    for each in seen:
        assert type(each) is np.ndarray and each.tolist() in expected, f"{each!r}"


def debug_calls(module: Any, seen: list[Any]) -> list[Callable[[Any], Any]]:
    def note(x: Any, *, more: Any) -> None:
        seen.append((float(x), float(more["name"])))

    return [
        lambda x: module.debug.callback(note, Variable(x), more={"name": Variable(x + 1)}),
        lambda x: module.debug.callback(ordered=True)(note, Variable(x), more={"name": Registered(x + 1).value}),
        lambda x: module.debug.print("{:.1f} {v:{w}.1f} {r.value}", Variable(x), v=Variable(x), w=6, r=Registered(x)),
    ]


@pytest.mark.contract("X4", "H27")
@pytest.mark.parametrize("installed", [False, True], ids=["names", "install"])
@pytest.mark.parametrize("transform", ["eager", "jit", "vmap", "scan"])
def test_debug_callbacks_and_prints(installed: bool, transform: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def run(module: Any) -> None:
        def program(x: Any) -> Any:
            for call in debug_calls(module, seen):
                call(x)
            return x

        TRANSFORMS[transform](program)
        jax.effects_barrier()

    if installed:
        with hcb.installed():
            run(jax)
    else:
        run(hcb)
    assert seen == [(1.0, 2.0), (1.0, 2.0)]
    assert capsys.readouterr().out == "1.0    1.0 1.0\n"


@pytest.mark.contract("X2", "X3", "H27")
@STAGES
def test_installed_callbacks_with_results(stage: Any) -> None:
    with hcb.installed():
        for callback in (jax.pure_callback, io_callback):
            assert stage(lambda x, callback=callback: callback(lambda v: v + 1, SCALAR, Variable(x)))(X[1]) == 2


@pytest.mark.contract("H1")
@STAGES
def test_a_tap_returns_the_value_and_its_result_unchanged(stage: Any) -> None:
    keys: list[Any] = []
    kept = Variable(X)

    def program(x: Any) -> Any:
        assert hcb.id_tap(lambda *_: None, Variable(x), result=kept) is kept
        key = hcb.id_tap(lambda words, _: keys.append(words), Variable(jax.random.key(3)))
        return hcb.id_tap(lambda *_: None, {"v": Variable(x)})["v"], jax.random.key_data(key)

    value, words = stage(program)(X)
    hcb.barrier_wait()
    np.testing.assert_array_equal(value, X)
    np.testing.assert_array_equal(words, keys[0])


@pytest.mark.contract("H1", "X1")
@KINDS
def test_one_without_a_value_is_refused_while_tracing(kind: str) -> None:
    with pytest.raises(TypeError, match="must be") as caught:
        jax.jit(lambda x: kinds([])[kind](Broken(x)))(X)
    assert "planted" in str(caught.value.__cause__)


@pytest.mark.contract("H15")
def test_a_function_that_returns_one_is_refused() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="Variable"):
        jax.block_until_ready(jax.jit(lambda: hcb.call(lambda _: Variable(X), 1, result_shape=X))())
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
