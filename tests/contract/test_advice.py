"""What error messages advise is tried: each row provokes an error, finds its advice in it, and does what it says."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import hostcb as hcb
from hostcb._errors.advice import advise
from hostcb._spec import kinds

X = np.arange(3, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
VECTOR = jax.ShapeDtypeStruct((3,), np.float32)


@dataclasses.dataclass(frozen=True)
class Advice:
    """An error, parts of its text, and what each advice in it leads to."""

    # In the source of the message, between two of its variables.
    text: str
    error: Any
    provoke: Callable[[], Any]
    # What the advice says, as code, and what should come of it.
    followed: Mapping[str, tuple[Callable[[], Any], Any]]


def double(x: Any) -> Any:
    return np.asarray(2 * x)


def pure(x: Any, **options: Any) -> Any:
    return hcb.pure_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **options)


def host(x: Any, **options: Any) -> Any:
    return hcb.call(double, x, result_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)


def io(x: Any, **options: Any) -> Any:
    return hcb.io_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **options)


def with_jvp(function: Callable[[Any], Any]) -> Any:
    wrapped = jax.custom_jvp(function)
    wrapped.defjvps(lambda tangent, out, x: 2 * tangent)
    return wrapped


def with_vjp(function: Callable[[Any], Any]) -> Any:
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda x: (function(x), None), lambda _, cotangent: (2 * cotangent,))
    return wrapped


def with_batching_rule(function: Callable[[Any], Any]) -> Any:
    wrapped = jax.custom_batching.custom_vmap(function)
    wrapped.def_vmap(lambda size, batched, x: (function(x), True))
    return wrapped


def tapped(run: Callable[[Callable[..., None]], Any]) -> Any:
    """What a tap function saw."""
    seen: list[Any] = []
    run(lambda value, transforms: seen.append(np.asarray(value).tolist()))
    hcb.barrier_wait()
    return seen


def debugged(run: Callable[[Callable[..., None]], Any]) -> Any:
    seen: list[Any] = []
    run(lambda value: seen.append(float(value)))
    hcb.barrier_wait()
    return sorted(seen)


def in_callback(run: Callable[[], Any]) -> Any:
    return hcb.call(lambda _: np.float32(run()), 0.0, result_shape=SCALAR)


def x64(run: Callable[[], Any]) -> Any:
    with jax.enable_x64(True):
        return np.asarray(run()).astype(np.float64)


def in_cond(callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.cond(x > 0, callback, lambda x: x, x)


def in_while(callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.while_loop(lambda carry: carry < 3, lambda carry: callback(carry) + 1, x)


def written(out: Any, x: Any) -> None:
    np.asarray(out)[...] = np.asarray(x)


def kept_from_buffer() -> Any:
    """Copies of what a buffer_callback is given."""
    kept: list[np.ndarray] = []

    def keep(ctx: Any, out: Any, x: Any) -> None:
        kept.append(np.asarray(x).copy())
        np.asarray(out)[...] = 0

    jax.block_until_ready(hcb.buffer_callback(keep, VECTOR)(X))
    return kept[0]


def kept_from_lent(kept: list[Any], how: Callable[[Any], Any]) -> None:
    jax.block_until_ready(hcb.dlpack_callback(lambda x: kept.append(how(x)) or x, VECTOR)(X))


def copied_from_lent() -> Any:
    kept: list[Any] = []
    kept_from_lent(kept, np.array)
    kept_from_lent(kept, lambda x: np.asarray(x).copy())
    return kept


def late_use() -> None:
    kept: list[Any] = []
    kept_from_lent(kept, lambda x: x)
    np.asarray(kept[0])


def not_its_own() -> None:
    from hostcb._lowering.rule import _CpuDevices

    _CpuDevices()[1_234_567]


def aliased(aliases: Any) -> Any:
    def add_one(out: Any, nothing: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    nothing = np.zeros(2, jax.dtypes.float0)
    return hcb.dlpack_callback(add_one, VECTOR, in_place=True, input_output_aliases=aliases)(nothing, X)


def small(x: Any, callback: Callable[..., Any]) -> Any:
    return callback(jnp.asarray(x))


def copies(x: Any) -> Any:
    return hcb.dlpack_callback(lambda x: x, lambda x: x)(x)


async def coroutine(x: Any) -> Any:
    return 2 * x


def generator(x: Any) -> Any:
    yield x


INT4, FLOAT4 = np.arange(3).astype(jnp.int4), np.arange(3).astype(ml_dtypes.float4_e2m1fn)


def in_condition(callback: bool, carried: bool) -> Any:
    """A loop that doubles a mutable array while it is small; its condition may call back, or take the value carried."""

    def program(x: Any) -> Any:
        ref = jax.new_ref(x)

        def small(value: Any) -> Any:
            looked_at = value if carried else ref[...]
            return (pure(looked_at) if callback else 2 * looked_at) < 16

        def body(value: Any) -> Any:
            ref[...] *= 2
            return ref[...]

        return jax.lax.while_loop(small, body, x)

    return jax.jit(program)(jnp.float32(1))


def into_ref(mend: bool) -> Any:
    def fill(context: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] = 2 * np.asarray(x)

    def program(ref: Any) -> None:
        filled = hcb.buffer_callback(fill, VECTOR)
        ref[...] = filled(ref[...] if mend else ref)

    ref = jax.new_ref(jnp.asarray(X))
    jax.jit(program)(ref)
    return ref[...]


def traced(run: Callable[[], Any], same_file: bool = False) -> list[int]:
    """How many calls each of two traces around a program recorded."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "outer.json"), Path(folder, "outer.json" if same_file else "inner.json")]
        with hcb.trace(files[0]), hcb.trace(files[1]):
            jax.block_until_ready(run())
        return [sum(event.get("cat") == "call" for event in json.loads(file.read_text())) for file in files]


CALLS = [
    Advice("Pass its value, ref[...], and write a result into it: ref[...] = result", TypeError,
           lambda: into_ref(mend=False), {"value": (lambda: into_ref(mend=True), 2 * X)}),
    Advice("Carry the array's value through the loop, or call back in the body", NotImplementedError,
           lambda: in_condition(callback=True, carried=False),
           {"carried": (lambda: in_condition(callback=True, carried=True), 8)}),
    Advice("Wait for the results of computations started here instead, with jax.block_until_ready", RuntimeError,
           lambda: in_callback(hcb.barrier_wait),
           {"block_until_ready": (lambda: in_callback(lambda: jax.block_until_ready(jax.jit(host)(jnp.float32(2)))),
                                  4)}),
    Advice("Pass what is no JAX value to the function by a closure or functools.partial", TypeError,
           lambda: hcb.pure_callback(lambda texts, x: x, VECTOR, np.array(["text"]), X),
           {"closure": (lambda: hcb.pure_callback(lambda x: x * len("text"), VECTOR, X), 4 * X),
            "partial": (lambda: hcb.pure_callback(functools.partial(lambda text, x: x * len(text), "text"), VECTOR, X),
                        4 * X)}),
    Advice("The result_shape comes before the operands: pure_callback(function, result_shape, *operands)", TypeError,
           lambda: hcb.pure_callback(double, X, VECTOR),
           {"order": (lambda: hcb.pure_callback(double, VECTOR, X), 2 * X)}),
    Advice("Pass a function that runs it to its end, such as lambda x: asyncio.run(coroutine(x)) or "
           "lambda x: list(generator(x))", TypeError,
           lambda: hcb.pure_callback(coroutine, VECTOR, X),
           {"coroutine": (lambda: hcb.pure_callback(lambda x: asyncio.run(coroutine(x)), VECTOR, X), 2 * X),
            "generator": (lambda: hcb.pure_callback(lambda x: list(generator(x))[-1], VECTOR, X), X)}),
    Advice(" the number to a float, or pass it to the function by a closure or functools.partial", OverflowError,
           lambda: hcb.pure_callback(double, VECTOR, 2**40),
           {"x64": (lambda: x64(lambda: hcb.pure_callback(double, jax.ShapeDtypeStruct((), np.int64), 2**40)), 2.0**41),
            "float": (lambda: hcb.pure_callback(double, SCALAR, float(2**40)), 2.0**41),
            "closure": (lambda: hcb.pure_callback(lambda: np.float32(2**40), SCALAR), 2.0**40),
            "partial": (lambda: hcb.pure_callback(functools.partial(np.float32, 2**40), SCALAR), 2.0**40)}),
    Advice("Set jax_enable_x64 (JAX_ENABLE_X64=1), convert", OverflowError,
           lambda: hcb.io_callback(double, SCALAR, 2**40), {}),
    Advice("Convert it to int8 or float16 first, or use pure_callback, which does", TypeError,
           lambda: small(INT4, copies),
           {"int8": (lambda: small(INT4, lambda x: copies(x.astype(jnp.int8))), [0, 1, 2]),
            "float16": (lambda: small(FLOAT4, lambda x: copies(x.astype(jnp.float16))), [0, 1, 2]),
            "pure int": (lambda: small(INT4, lambda x: hcb.pure_callback(lambda a: a, x, x)).astype(int), [0, 1, 2]),
            "pure float": (lambda: small(FLOAT4, lambda x: hcb.pure_callback(lambda a: a, x, x)).astype(float),
                           [0, 1, 2])}),
    Advice("Drop this mapping; the numbers of the others stay", ValueError,
           lambda: aliased({0: 0, 1: 0}), {"dropped": (lambda: aliased({1: 0}), X + 1)}),
    Advice("Write into the buffers that it is given as `out`", jax.errors.JaxRuntimeError,
           lambda: hcb.dlpack_callback(lambda out, x: x, VECTOR, in_place=True)(X),
           {"written": (lambda: hcb.dlpack_callback(written, VECTOR, in_place=True)(X), X)}),
    Advice("Rename the argument, or drop with_stream=True", TypeError,
           lambda: hcb.dlpack_callback(lambda x, stream: x, VECTOR, with_stream=True)(X, stream=X),
           {"renamed": (lambda: hcb.dlpack_callback(lambda x, y, stream: y, VECTOR, with_stream=True)(X, y=X), X),
            "dropped": (lambda: hcb.dlpack_callback(lambda x, stream: stream, VECTOR)(X, stream=X), X)}),
    Advice("Copy what should be kept", BufferError, late_use, {"copied": (copied_from_lent, [X, X])}),
    Advice("Let functions of buffer_callback copy what they keep, with np.asarray(buffer).copy()", RuntimeError,
           not_its_own, {"copied": (kept_from_buffer, X)}),
    Advice("Use jax.lax.map in place of vmap, or debug.callback or id_tap if running in both", NotImplementedError,
           lambda: jax.vmap(in_cond(io))(X),
           {"map": (lambda: lax.map(in_cond(io), X), 2 * X),
            "debug": (lambda: debugged(lambda see: jax.vmap(in_cond(lambda x: hcb.debug.callback(see, x) or x))(X)),
                      [0, 1, 2]),
            "id_tap": (lambda: tapped(lambda tap: jax.vmap(in_cond(lambda x: hcb.id_tap(tap, x)))(X)), [X.tolist()])}),
    Advice("Use jax.lax.map in place of vmap, or debug.callback or id_tap if that is right", NotImplementedError,
           lambda: jax.vmap(in_while(io))(X),
           {"map": (lambda: lax.map(in_while(io), X), [3, 3, 5]),
            "debug": (lambda: len(debugged(lambda see: jax.vmap(in_while(
                lambda x: hcb.debug.callback(see, x) or x))(X))), 9),
            "id_tap": (lambda: tapped(lambda tap: jax.vmap(in_while(lambda x: hcb.id_tap(tap, x)))(X)),
                       [[0, 1, 2], [1, 2, 3], [2, 3, 3]])}),
    Advice('write debug.print("{x}", x=x) rather than debug.print(f"{x}")', ValueError,
           lambda: hcb.debug.print(f"{X}", x=X), {"string": (lambda: hcb.debug.print("{x}", x=X) or 0, 0)}),
    Advice("Give the function that calls it a derivative with jax.custom_jvp or jax.custom_vjp, or use id_tap",
           NotImplementedError, lambda: jax.grad(host)(jnp.float32(1)),
           {"custom_jvp": (lambda: jax.grad(with_jvp(host))(jnp.float32(1)), 2),
            "custom_vjp": (lambda: jax.grad(with_vjp(host))(jnp.float32(1)), 2),
            "id_tap": (lambda: tapped(lambda tap: jax.grad(lambda x: hcb.id_tap(tap, x))(1.0)), [1])}),
    Advice("or pass it `jax.lax.stop_gradient(x)` if none should come from it", ValueError,
           lambda: jax.grad(io)(jnp.float32(1)),
           {"stop_gradient": (lambda: jax.grad(lambda x: x * io(lax.stop_gradient(x)))(jnp.float32(1)), 2)}),
    Advice("please use `jax.custom_jvp` or `jax.custom_vjp` to give the function that calls it a derivative",
           ValueError, lambda: jax.grad(pure)(jnp.float32(1)),
           {f"{kind.__name__} {rule.__name__}": (lambda kind=kind, rule=rule: jax.grad(rule(kind))(jnp.float32(1)), 2)
            for kind in (pure, io, copies) for rule in (with_jvp, with_vjp)}),
    Advice("batch it with call(..., vmap_method=…), define a rule with jax.custom_batching.custom_vmap, or use id_tap",
           NotImplementedError,
           lambda: jax.vmap(host)(X),
           {**{method: (lambda method=method: jax.vmap(lambda x: host(x, vmap_method=method))(X), 2 * X)
               for method in ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all")},
            "custom_vmap": (lambda: jax.vmap(with_batching_rule(host))(X), 2 * X),
            "id_tap": (lambda: tapped(lambda tap: jax.vmap(lambda x: hcb.id_tap(tap, x))(X)), [X.tolist()])}),
    Advice("when vmap_method is one of 'sequential', 'sequential_unrolled', 'expand_dims', 'broadcast_all', or "
           "'legacy_vectorized'", NotImplementedError, lambda: jax.vmap(pure)(X),
           {method: (lambda method=method: jax.vmap(lambda x: pure(x, vmap_method=method))(X), 2 * X)
            for method in ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")}),
    Advice("Use ordered=False, or a loop such as jax.lax.map in place of vmap", ValueError,
           lambda: jax.vmap(lambda x: io(x, ordered=True))(X),
           {"unordered": (lambda: jax.vmap(lambda x: io(x, ordered=False))(X), 2 * X),
            "map": (lambda: lax.map(lambda x: io(x, ordered=True), X), 2 * X)}),
    Advice("Use jax.lax.scan or jax.lax.associative_scan in place of it", NotImplementedError,
           lambda: jax.jit(lambda x: lax.reduce(x, np.float32(0), lambda a, b: pure(a + b), (0,)))(X),
           {"scan": (lambda: lax.scan(lambda carry, x: (pure(carry + x), None), np.float32(0), X)[0], 8),
            "associative_scan": (lambda: lax.associative_scan(lambda a, b: pure(a + b) / 2, X), [0, 1, 3])}),
    Advice(". No result_shape was given: pass one for a result to return", jax.errors.JaxRuntimeError,
           lambda: hcb.call(double, X), {"passed": (lambda: hcb.call(double, X, result_shape=X), 2 * X)}),
    Advice("returned a masked array: fill it, JAX has no masks", jax.errors.JaxRuntimeError,
           lambda: hcb.pure_callback(lambda x: np.ma.masked_equal(x, 1), VECTOR, X),
           {"filled": (lambda: hcb.pure_callback(lambda x: np.ma.masked_equal(x, 1).filled(7), VECTOR, X), [0, 7, 2])}),
    Advice("wrap the callback in hostcb.jax_arrays(…), which gives it jax.Arrays", jax.errors.JaxRuntimeError,
           lambda: hcb.io_callback(lambda x: x.at[1].set(7), VECTOR, X),
           {"wrapped": (lambda: hcb.io_callback(hcb.jax_arrays(lambda x: x.at[1].set(7)), VECTOR, X), [0, 7, 2])}),
    Advice("64-bit types need jax_enable_x64: set it (JAX_ENABLE_X64=1), or ask for {}.", ValueError,
           lambda: hcb.pure_callback(np.float64, jax.ShapeDtypeStruct((), np.float64), 2),
           {"set": (lambda: x64(lambda: hcb.pure_callback(np.float64, jax.ShapeDtypeStruct((), np.float64), 2)), 2),
            "float32": (lambda: hcb.pure_callback(np.float64, SCALAR, 2), 2)}),
    Advice(" Set jax_enable_x64 (JAX_ENABLE_X64=1) and expect {} to have it whole.", jax.errors.JaxRuntimeError,
           lambda: hcb.pure_callback(lambda: 2**40, jax.ShapeDtypeStruct((), np.int32)),
           {"int64": (lambda: x64(lambda: hcb.pure_callback(lambda: 2**40, jax.ShapeDtypeStruct((), np.int64))),
                      2.0**40)}),
    Advice("Options go into the first call, what is to be called or printed into the second", TypeError,
           lambda: hcb.debug.print(x=X, ordered=True),
           {"two calls": (lambda: hcb.debug.print(ordered=True)("{x}", x=X) or 0, 0),
            "callback": (lambda: debugged(lambda see: hcb.debug.callback(ordered=True)(see, X[1])), [1])}),
    Advice(" This looks like a shape: use jax.ShapeDtypeStruct({}, dtype).", ValueError,
           lambda: hcb.pure_callback(double, [3], X),
           {"described": (lambda: hcb.pure_callback(double, VECTOR, X), 2 * X)}),
    Advice(" This looks like a shape and a dtype: use jax.ShapeDtypeStruct({}, {}).", ValueError,
           lambda: hcb.call(double, X, result_shape=((3,), jnp.float32)),
           {"described": (lambda: hcb.call(double, X, result_shape=VECTOR), 2 * X)}),
    Advice(" This looks like a dtype: use jax.ShapeDtypeStruct(shape, {}).", ValueError,
           lambda: hcb.pure_callback(double, np.dtype("float32"), X),
           {"described": (lambda: hcb.pure_callback(double, VECTOR, X), 2 * X)}),
    Advice("Print a text as a label: id_print(x, what='the text').", TypeError,
           lambda: hcb.id_print(np.array(["loss"])),
           {"label": (lambda: hcb.id_print(X, what="loss"), X)}),
    Advice("printed as they are. Print it in the value: id_print(dict({}=…)).", TypeError,
           lambda: jax.jit(lambda x: hcb.id_print(x, step=x))(X),
           {"in the value": (lambda: jax.jit(lambda x: hcb.id_print({"step": x})["step"])(X), X)}),
    Advice(" has the text of a traced value. ", ValueError, lambda: jax.jit(lambda x: hcb.debug.print(f"{x}"))(X),
           {"a field": (lambda: jax.jit(lambda x: hcb.debug.print("{x}", x=x) or x)(X), X)}),
    Advice("Write {{}} where each is to be printed: debug.print(\"x is {}\", x).", ValueError,
           lambda: hcb.debug.print("x is", X),
           {"a field": (lambda: hcb.debug.print("x is {}", X) or 0, 0)}),
    Advice("result_shape describes integers and no shape: for an array use {}.", jax.errors.JaxRuntimeError,
           lambda: hcb.call(double, X, result_shape=(3,)),
           {"described": (lambda: hcb.call(double, X, result_shape=jax.ShapeDtypeStruct((3,), np.float32)), 2 * X)}),
    Advice("Wrap what the callback returns in an array: np.asarray(value, {}).", jax.errors.JaxRuntimeError,
           lambda: hcb.pure_callback(lambda x: [1.0, 2, 3], VECTOR, X),
           {"list": (lambda: hcb.pure_callback(lambda x: np.asarray([1.0, 2, 3], np.float32), VECTOR, X), [1, 2, 3]),
            "number": (lambda: hcb.call(lambda x: np.asarray(1, np.float32), X, result_shape=SCALAR), 1)}),
    Advice("For an array of equal elements return np.full({}, value, {}).", jax.errors.JaxRuntimeError,
           lambda: hcb.call(lambda x: 1.5, X, result_shape=VECTOR),
           {"full": (lambda: hcb.call(lambda x: np.full((3,), 1.5, np.float32), X, result_shape=VECTOR), [1.5] * 3)}),
    Advice("Return it in the promised dtype: value.astype({}).", jax.errors.JaxRuntimeError,
           lambda: hcb.pure_callback(lambda x: x > 0, VECTOR, X),
           {"cast": (lambda: hcb.pure_callback(lambda x: (x > 0).astype(np.float32), VECTOR, X), [0, 1, 1])}),
    Advice("Begin it around the program that calls back", RuntimeError,
           lambda: in_callback(lambda: sum(traced(lambda: host(X)))),
           {"around": (lambda: traced(lambda: host(X)), [1, 1])}),
    Advice("Give each trace its own file", ValueError,
           lambda: traced(lambda: host(X), same_file=True), {"own files": (lambda: traced(lambda: host(X)), [1, 1])}),
]  # fmt: skip


@pytest.mark.contract("H15")
@pytest.mark.parametrize("advice", CALLS, ids=lambda advice: advice.text[:40])
def test_advice_of_an_error_works(advice: Advice) -> None:
    check(advice)


def check(advice: Advice) -> None:
    __tracebackhide__ = True
    with pytest.raises(advice.error) as caught:
        jax.block_until_ready(advice.provoke())
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    for part in advice.text.split("{}"):
        assert part in said, f"{part!r} should be in the error: {said}"
    if isinstance(caught.value, jax.errors.JaxRuntimeError):
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()
    for name, (follow, expected) in advice.followed.items():
        np.testing.assert_array_equal(np.asarray(follow()), np.asarray(expected), err_msg=f"{name}: {advice.text}")


@pytest.mark.contract("H32")
def test_an_exception_that_only_looks_like_an_attribute_error_gets_no_advice() -> None:
    failure: Any = KeyError("at")
    failure.obj, failure.name = np.zeros(1), "at"
    callback: Any = types.SimpleNamespace(kind=kinds.CALL)
    advise(callback, failure)
    assert not hasattr(failure, "__notes__")
    missing = AttributeError("at", name="at", obj=np.zeros(1))
    advise(callback, missing)
    assert "hostcb.jax_arrays" in missing.__notes__[0]
