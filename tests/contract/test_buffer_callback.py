"""B1 to B5: functions that fill device memory in place."""

from __future__ import annotations

import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import STAGES, Record, address, failed, like
from support.pairwise import in_turns

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
EFFECT = pytest.mark.parametrize("has_side_effect", [False, True], ids=["pure", "effect"])


def add_one(ctx: Any, out: Any, x: Any) -> None:
    np.add(np.asarray(x), 1, out=np.asarray(out))


# Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("B1")
@EFFECT
@pytest.mark.parametrize("layout", [*helpers.MAIN_LAYOUTS, helpers.JIT_DEVICE_5], ids=helpers.named)
def test_every_layout(layout: helpers.Layout, has_side_effect: bool) -> None:
    values = [X + n for n in range(len(layout.callers))]
    run = lambda: layout.run(
        lambda x: hcb.buffer_callback(add_one, like(x), has_side_effect=has_side_effect)(x) * 2, values
    )
    if layout is helpers.MESH and has_side_effect:
        with pytest.raises(NotImplementedError, match=r"8 devices.*shard_map"):
            run()
        return
    for value, out in zip(values, run(), strict=True):
        helpers.equal(out, (value + 1) * 2, layout.name)


@pytest.mark.contract("B1")
@STAGES
def test_trees_keyword_arguments_and_context(stage: Any) -> None:
    seen = []

    def fill(ctx: Any, out: Any, tree: Any, *rest: Any, scale: Any) -> None:
        seen.append((type(ctx).__name__, str(ctx.stage), jax.tree.structure((out, tree, rest, scale))))
        np.asarray(out["sum"])[...] = np.asarray(tree["a"]) + np.asarray(rest[0][1])
        np.asarray(out["pair"][0])[...] = np.asarray(scale)

    shapes = {"sum": like(X), "pair": (like(np.int32(0)),)}
    f = hcb.buffer_callback(fill, shapes)
    out = stage(lambda x, n: f({"a": x, "b": None}, (x, x + 1), scale=n))(X, np.int32(7))
    helpers.equal(out, {"sum": 2 * X + 1, "pair": (np.int32(7),)}, "results")
    ((context, when, tree),) = seen
    assert context == "ExecutionContext", f"the context is a {context}"
    assert "EXECUTE" in when, f"its stage is {when}"
    assert tree == jax.tree.structure((shapes, {"a": 0, "b": None}, ((0, 0),), 0)), f"trees {tree}"


@pytest.mark.contract("B1", "B2")
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.float16, np.complex64,
                                   ml_dtypes.bfloat16, ml_dtypes.float8_e5m2], ids=str)  # fmt: skip
def test_dtypes_of_buffers(dtype: Any) -> None:
    value = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    seen = []

    def fill(ctx: Any, out: Any, x: Any) -> None:
        seen.append((x.dtype, x.shape, out.dtype, out.shape))
        np.asarray(out)[...] = np.asarray(x)[::-1]

    helpers.equal(jax.jit(hcb.buffer_callback(fill, like(value)))(value), value[::-1], np.dtype(dtype).name)
    assert seen == [(np.dtype(dtype), (2, 3), np.dtype(dtype), (2, 3))], f"seen {seen}"


@pytest.mark.contract("B1")
@STAGES
def test_zero_sizes_and_no_operands_and_no_results(stage: Any) -> None:
    record = Record()

    def fill(ctx: Any, out: Any, *args: Any) -> None:
        record.add([tuple(leaf.shape) for leaf in jax.tree.leaves((out, args))])

    empty = jax.ShapeDtypeStruct((0, 3), np.float32)
    out = stage(lambda x: hcb.buffer_callback(fill, empty, has_side_effect=True)(x[:0]))(X)
    helpers.equal(out, np.zeros((0, 3), np.float32), "an empty result")
    assert stage(lambda x: (hcb.buffer_callback(fill, (), has_side_effect=True)(x), x + 1))(X)[0] == ()
    stage(lambda: hcb.buffer_callback(fill, None, has_side_effect=True)())()
    jax.effects_barrier()
    assert [seen.arg for seen in record.all] == [[(0, 3), (0,)], [(8,)], []], f"shapes {record.all}"
    nothing_in = stage(lambda: hcb.buffer_callback(lambda ctx, out: np.asarray(out).fill(3), SCALAR)())()
    helpers.equal(nothing_in, np.float32(3), "no operand")


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("B1")
@STAGES
@EFFECT
def test_returning_something_is_an_error_that_says_so(stage: Any, has_side_effect: bool) -> None:
    def fill(ctx: Any, out: Any, x: Any) -> Any:
        add_one(ctx, out, x)
        return np.asarray(x) + 1

    f = stage(hcb.buffer_callback(fill, like(X), has_side_effect=has_side_effect))
    for _ in range(3):
        error = failed("buffer_callback callback must not return any values", f, X)
        assert error.__cause__ is None, "the text says what the function returned"
        for part in ("Write into the buffers", "`out`", "test_buffer_callback.py"):
            assert part in str(error), f"{part!r} should be in {error}"


@pytest.mark.contract("B1")
def test_works_with_jit_disabled() -> None:
    with jax.disable_jit():
        helpers.equal(hcb.buffer_callback(add_one, like(X))(X), X + 1, "eager")
        out = lax.scan(lambda c, x: (c, hcb.buffer_callback(add_one, SCALAR)(x)), 0, X)[1]
    helpers.equal(out, X + 1, "a loop in Python")


@pytest.mark.contract("B1")
def test_side_effects_are_never_dropped_and_pure_ones_may_be() -> None:
    record = Record()

    def fill(ctx: Any, out: Any, x: Any) -> None:
        record.add(np.asarray(x).copy())
        add_one(ctx, out, x)

    def program(has_side_effect):
        f = hcb.buffer_callback(fill, SCALAR, has_side_effect=has_side_effect)
        return jax.jit(lambda x: lax.scan(lambda c, y: ((f(y), c)[1], None), x, jnp.arange(3.0))[0])

    jax.block_until_ready((program(False)(1.0), jax.jit(jax.grad(program(False)))(1.0)))
    assert record.all == [], "unused and without effects"
    jax.block_until_ready((program(True)(1.0), jax.jit(jax.grad(program(True)))(1.0)))
    jax.effects_barrier()
    assert sorted(record.values) == [0, 0, 1, 1, 2, 2], f"three times in each of two runs, got {record.values}"


# Transformations -------------------------------------------------------------------------------------------------


@pytest.mark.contract("B4")
@EFFECT
def test_derivatives_are_refused_and_the_way_out_is_named(has_side_effect: bool) -> None:
    f = hcb.buffer_callback(add_one, SCALAR, has_side_effect=has_side_effect)
    for transform in (lambda: jax.jvp(f, (1.0,), (1.0,)), lambda: jax.grad(f)(1.0), lambda: jax.linearize(f, 1.0)):
        with pytest.raises(ValueError, match=r"Buffer callbacks do not support JVP.*jax\.custom_jvp"):
            transform()
    with pytest.raises(ValueError, match=r"Buffer callbacks do not support transpose.*jax\.custom_vjp"):
        jax.linear_transpose(f, 1.0)(1.0)
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 5))
    if not has_side_effect:
        assert float(jax.jit(jax.grad(g))(1.0)) == 5.0


SHAPES = {
    "sequential": [((2,), (2,), (2,))] * 3,
    "sequential_unrolled": [((2,), (2,), (2,))] * 3,
    "expand_dims": [((3, 2), (1, 2), (3, 2))],
    "broadcast_all": [((3, 2), (3, 2), (3, 2))],
    "legacy_vectorized": [((3, 2), (2,), (3, 2))],
}


@pytest.mark.contract("B4")
@STAGES
@pytest.mark.parametrize("method", SHAPES)
def test_vmap_by_method(stage: Any, method: str) -> None:
    seen = []

    def fill(ctx: Any, out: Any, x: Any, y: Any) -> None:
        seen.append((tuple(x.shape), tuple(y.shape), tuple(out.shape)))
        np.asarray(out)[...] = np.asarray(x) * np.asarray(y)

    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([10, 100], np.float32)
    f = hcb.buffer_callback(fill, like(b), vmap_method=method)
    helpers.equal(stage(jax.vmap(f, (0, None)))(a, b), a * b, method)
    assert seen == SHAPES[method], f"shapes {seen}"
    with pytest.raises(NotImplementedError, match=r"vmap is only supported for the buffer_callback primitive when"):
        stage(jax.vmap(hcb.buffer_callback(fill, like(b)), (0, None)))(a, b)


@pytest.mark.contract("B3", "B4")
@STAGES
@in_turns(("method", "axes"), SHAPES, [(0, 0), (None, 0), (1, None), (0, None)], times=3)
def test_vmap_with_aliases_also_of_an_unbatched_operand(stage: Any, method: str, axes: Any) -> None:
    """An operand that is not batched, but shares its memory with a result that is, has to grow with it."""
    seen = []

    def fill(ctx: Any, out: Any, x: Any, y: Any) -> None:
        seen.append(address(x) == address(out))
        np.asarray(out)[...] += np.asarray(y) if np.ndim(y) == np.ndim(out) else np.asarray(y)[None]

    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    args = [a if axis is not None else a[0] for a, axis in zip((x, x * 10), axes, strict=True)]
    f = hcb.buffer_callback(fill, jax.ShapeDtypeStruct((3,), np.float32), vmap_method=method,
                            input_output_aliases={0: 0})  # fmt: skip
    expected = np.asarray(jax.vmap(lambda x, y: x + y, axes)(*args))
    helpers.equal(stage(jax.vmap(f, axes))(*args), expected, f"{method} {axes}")
    assert seen and all(seen), "in place"


# Platforms -------------------------------------------------------------------------------------------------------


def lowered(platform: str, **options: Any) -> str:
    f = hcb.buffer_callback(add_one, like(X), **options)
    return jax.jit(f).trace(X).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.contract("B5")
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_targets_with_their_command_buffer_variant(platform: str) -> None:
    plain, recorded = lowered(platform), lowered(platform, command_buffer_compatible=True)
    assert re.search(r"@xla_buffer_python_gpu_callback\(", plain), plain
    assert re.search(r"@xla_buffer_python_gpu_callback_cmd_buffer\(", recorded), recorded
    for text in (plain, recorded):
        assert "mhlo.backend_config = {index = " in text, "the runtime knows the function by its number"
        assert "has_side_effect = true" not in text, "without effects XLA may drop it"
    assert "has_side_effect = true" in lowered(platform, has_side_effect=True)
    aliased = lowered(platform, input_output_aliases={0: 0})
    assert "output_operand_aliases" in aliased and "output_operand_alias<" in aliased, aliased
    assert "operand_index = 0" in aliased, aliased


@pytest.mark.contract("B5")
def test_cpu_has_one_target_and_others_a_clear_error() -> None:
    for options in ({}, {"command_buffer_compatible": True}):
        assert re.search(r"@xla_buffer_python_cpu_callback\(", lowered("cpu", **options))
    with pytest.raises(ValueError, match=r"`buffer_callback` not supported on tpu backend.*Use pure_callback"):
        lowered("tpu")
    with pytest.raises(NotImplementedError, match="several platforms at once"):
        jax.jit(hcb.buffer_callback(add_one, like(X))).trace(X).lower(lowering_platforms=("cpu", "cuda"))


@pytest.mark.contract("B1")
def test_equal_callbacks_make_equal_programs() -> None:
    traced = []

    @jax.jit
    def f(x):
        traced.append(0)
        return hcb.buffer_callback(add_one, like(x))(x)

    once = lambda x: hcb.buffer_callback(add_one, like(x))(x)
    first, second = (jax.make_jaxpr(once)(X).eqns[0].params for _ in range(2))
    assert first == second and hash(first["callback"]) == hash(second["callback"]), "equal callbacks should be equal"
    for _ in range(5):
        f(X)
    assert len(traced) == 1, f"traced {len(traced)} times"


# Equal functions -------------------------------------------------------------------------------------------------


class Fills:
    """Equal to every other one, and each fills its own value in."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fills)

    def __hash__(self) -> int:
        return hash(Fills)

    def __call__(self, *arguments: Any) -> None:
        np.asarray(arguments[-2])[...] = self.value


@pytest.mark.contract("B1", "H18")
@STAGES
@pytest.mark.parametrize("form", [lambda f: f, lambda f: types.MethodType(f, X)], ids=["functions", "methods"])
def test_each_of_two_equal_functions_is_called(form: Any, stage: Any) -> None:
    """Methods of one object are equal if their functions are."""
    for value in (1.0, 2.0):
        out = stage(lambda x, value=value: hcb.buffer_callback(form(Fills(value)), like(X))(x))(X)
        helpers.equal(out, np.full_like(X, value), "results")
