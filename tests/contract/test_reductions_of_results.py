"""H4, X3, X4: a program that returns an array calls back with a reduction of that array.

XLA's compiler for CPU refuses such programs, with operands as large as these: see `reductions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb as hcb
from hostcb._runtime.dispatch.programs import Program
from hostcb._workarounds import reductions

pytestmark = pytest.mark.contract("H4", "X3", "X4")

SIDE = 64
X = np.linspace(-1, 1, SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
F32 = jax.ShapeDtypeStruct((), np.float32)

seen: list[float] = []


def see(value: Any) -> None:
    seen.append(float(np.asarray(value, np.float32)))


def fill(context: Any, result: Any, operand: Any) -> None:
    see(np.asarray(operand))
    np.asarray(result)[...] = 0


def kernel(operand: Any) -> Any:
    value = np.asarray(operand) if hasattr(operand, "__array__") else np.from_dlpack(operand)
    see(value)
    return np.zeros_like(value)


def pure_and_debug(value: Any) -> None:
    hcb.debug.callback(see, hcb.pure_callback(lambda v: v, F32, value))


KINDS: dict[str, Callable[[Any], Any]] = {
    "debug.callback": functools.partial(hcb.debug.callback, see),
    "io_callback": functools.partial(hcb.io_callback, see, None),
    "io_callback with an unused result": lambda v: hcb.io_callback(kernel, F32, v),
    "pure_callback and debug.callback": pure_and_debug,
    "buffer_callback": lambda v: hcb.buffer_callback(fill, F32, has_side_effect=True)(v),
    "dlpack_callback": lambda v: hcb.dlpack_callback(kernel, F32, has_side_effect=True)(v),
}
REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": jnp.mean,
    "sum": jnp.sum,
    "max": jnp.max,
    "norm": jnp.linalg.norm,
}
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ x,
    "layer": lambda x: jax.nn.relu(x @ x + 1),
    "no product": lambda x: x * 2,
    "bfloat16": lambda x: x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16),
}


def calling(array: Callable[[Any], Any], reduction: Callable[[Any], Any], call: Callable[[Any], Any]) -> Any:
    def program(x: Any) -> Any:
        y = array(x)
        call(reduction(y))
        return y

    return program


def check(program: Callable[[Any], Any], plain: Callable[[Any], Any], reduced: list[float], x: Any = X) -> None:
    """`program` returns what `plain` does, and calls back with `reduced`, in any order."""
    seen.clear()
    result = jax.block_until_ready(program(x))
    hcb.barrier_wait()
    # A reduction inside of the program may add in another order.
    np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(plain(x), np.float32), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(sorted(seen), sorted(reduced), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    array = ARRAYS["product"]
    check(jax.jit(calling(array, jnp.max, KINDS[kind])), array, [float(jnp.max(array(X)))])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("array", ARRAYS)
def test_every_reduction(array: str, reduction: str) -> None:
    made, reduce = ARRAYS[array], REDUCTIONS[reduction]
    check(jax.jit(calling(made, reduce, KINDS["debug.callback"])), made, [float(reduce(made(X)))])


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    jax.jit(calling(lambda x: x * 2, jnp.max, functools.partial(hcb.debug.print, "largest {}")))(X)
    hcb.barrier_wait()
    assert capsys.readouterr().out == "largest 2.0\n"


LAYER = calling(ARRAYS["no product"], jnp.max, KINDS["debug.callback"])


def gradient(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.sin(x)))(x)


TRANSFORMED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[float]]] = {
    "a gradient": (calling(gradient, jnp.min, KINDS["debug.callback"]), jnp.cos, [float(np.cos(X).min())]),
    "the carry of a scan": (
        lambda x: jax.lax.scan(lambda carry, _: (LAYER(carry), None), x, None, length=2)[0],
        lambda x: x * 4,
        [2, 4],
    ),
    "the only carry of a while_loop": (
        lambda x: jax.lax.while_loop(lambda carry: jnp.all(carry[0, 0] > -3), LAYER, x),
        lambda x: x * 4,
        [2, 4],
    ),
    "the result of a branch": (lambda x: jax.lax.cond(x[0, 0] < 0, LAYER, lambda x: x, x), lambda x: x * 2, [2]),
    "made before a jitted function": (
        calling(ARRAYS["no product"], jax.jit(lambda y: KINDS["debug.callback"](jnp.max(y))), lambda _: None),
        lambda x: x * 2,
        [2],
    ),
}


@pytest.mark.parametrize("what", TRANSFORMED)
def test_transformed(what: str) -> None:
    program, plain, reduced = TRANSFORMED[what]
    check(jax.jit(program), plain, reduced)


def test_batched() -> None:
    check(jax.jit(jax.vmap(LAYER)), lambda x: x * 2, [2, 6], np.stack([X, 3 * X]))


@pytest.mark.parametrize("layout", ["jit", "shard_map", "pmap"])
def test_several_devices(layout: str) -> None:
    devices = jax.devices()[:2]
    mesh = jax.sharding.Mesh(np.array(devices), "d")
    split = jax.sharding.PartitionSpec("d")
    x, program = np.concatenate([X, X]), jax.jit(LAYER)
    if layout == "pmap":
        x, program = np.stack([X, X]), jax.pmap(LAYER, devices=devices)
    elif layout == "shard_map":
        program = jax.jit(jax.shard_map(LAYER, mesh=mesh, in_specs=split, out_specs=split))
    else:
        program = jax.jit(LAYER, in_shardings=jax.sharding.NamedSharding(mesh, split))
    check(program, lambda x: x * 2, [2] if layout == "jit" else [2, 2], x)


def test_options_of_the_user_come_first() -> None:
    program = jax.jit(LAYER).lower(X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid enum value"):
        program.compile({"xla_cpu_experimental_ynn_fusion_type": "NONE"})
    compiled = program.compile({"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"})
    check(compiled, lambda x: x * 2, [2])


def test_without_the_option_programs_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a jaxlib of another time, which refuses options that it does not know."""
    monkeypatch.setattr(reductions, "_LIBRARY", "xla_cpu_option_of_another_time")
    program = jax.jit(lambda x: calling(lambda y: y * 2, lambda y: y[0, 0], KINDS["debug.callback"])(x))
    check(program, lambda x: x * 2, [-2])


def test_only_where_it_is_needed() -> None:
    """Other programs keep the library's reductions, which are faster."""
    one = jax.jit(lambda x: x * 2).lower(X)._lowering.stablehlo()
    two = jax.jit(lambda x: (x * 2, x)).lower(X)._lowering.stablehlo()
    scalar = jax.jit(jnp.sum).lower(X)._lowering.stablehlo()
    with_effect, pure = Program(), Program()
    with_effect.effectful = True
    needed = [
        reductions._without_library_reductions(module, kept)
        for module, kept in (
            (one, [with_effect]),
            (one, [pure]),
            (one, []),
            (two, [with_effect]),
            (scalar, [with_effect]),
        )
    ]
    assert list(map(bool, needed)) == [True, False, False, False, False]
