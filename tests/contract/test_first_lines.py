"""The first line of each error says what failed and why; tracebacks end in the user's file (H32)."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from subprocesses import run_program

import hostcb as hcb
from hostcb import debug
from hostcb._runtime.failures import failure_log

pytestmark = pytest.mark.contract("H32")

F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)


def save(*operands: Any, **_: Any) -> Any:
    raise OSError("disk full\nand more")


class Full:
    """A stream that cannot be written to."""

    def write(self, text: str) -> None:
        raise OSError("disk full\nand more")


class Unprintable:
    def __str__(self) -> str:
        raise OSError("disk full\nand more")

    __repr__ = __str__


SAVE = f"save ({__file__}:{save.__code__.co_firstlineno})"

TAPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "id_tap": (f"id_tap: {SAVE}", lambda x: hcb.id_tap(save, x)),
    "id_print": ("id_print: 'step: 3'", lambda x: hcb.id_print(x, output_stream=Full(), step=3)),
    "id_print, no labels": ("id_print: a print without labels", lambda x: hcb.id_print(x, output_stream=Full())),
}
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "call": (f"call: {SAVE}", lambda x: hcb.call(save, x, result_shape=F32)),
    "pure_callback": (f"pure_callback: {SAVE}", lambda x: hcb.pure_callback(save, F32, x)),
    "io_callback": (f"io_callback: {SAVE}", lambda x: hcb.io_callback(save, F32, x)),
    "io_callback, ordered": (f"io_callback: {SAVE}", lambda x: hcb.io_callback(save, None, x, ordered=True)),
    "debug.callback": (f"debug.callback: {SAVE}", lambda x: debug.callback(save, x)),
    "debug.print": (
        "debug.print: '{} {y}'",
        lambda x: debug.print("{} {y}", x, y=Unprintable(), skip_format_check=True),
    ),
    "buffer_callback": (f"buffer_callback: {SAVE}", lambda x: hcb.buffer_callback(save, F32)(x)),
    "dlpack_callback": (f"dlpack_callback: {SAVE}", lambda x: hcb.dlpack_callback(save, F32)(x)),
}
STAGES = pytest.mark.parametrize("stage", [jax.jit, lambda f: f], ids=["jit", "eager"])


def files_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def barrier() -> hcb.CallbackException:
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return caught.value


def ended(program: Callable[[], Any]) -> jax.errors.JaxRuntimeError:
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(program())
        jax.effects_barrier()
    return caught.value


@STAGES
@pytest.mark.parametrize("kind", CALLS)
def test_what_ends_a_computation(kind: str, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    who, call = CALLS[kind]
    error = ended(lambda: stage(call)(ONE))
    first = f"{who}, on cpu:0, raised OSError: disk full …"
    lines = str(error).splitlines()
    assert lines[0] == first, error
    # The callback raised: so there is no talk of a result that should be corrected, nor of JAX's name for a transport.
    assert "result_shape" not in str(error) and "INTERNAL" not in str(error)
    assert lines[2] == "Traceback (most recent call last):" and "OSError: disk full" in lines
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [f"{first} (its computation ends)"]
    reported = barrier()
    assert str(reported).splitlines()[0] == first
    assert "has ended with this failure already" in str(reported)
    (failure,) = reported.failures
    assert (failure.headline, failure.kind, failure.ended) == (first, kind.partition(",")[0], True)
    for each in (error, error.__cause__, reported):
        assert each is not None and files_of(each)[-1] == __file__, files_of(each)
    assert {*files_of(error.__cause__)} == {__file__}, "the function's traceback has no frame of hostcb"


@STAGES
@pytest.mark.parametrize("kind", TAPS)
def test_what_a_barrier_raises(kind: str, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    who, tap = TAPS[kind]
    jax.block_until_ready(stage(tap)(jnp.float32(1)))
    error = barrier()
    first = f"{who}, on cpu:0, raised OSError: disk full …"
    assert str(error).splitlines()[0] == first, error
    assert "already" not in str(error), "nothing else has reported it"
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        f"{first} (the next barrier_wait raises it)"
    ]
    (failure,) = error.failures
    assert (failure.headline, failure.kind, failure.ended) == (first, kind.partition(",")[0], False)
    assert pickle.loads(pickle.dumps(failure)).headline == first
    assert {*files_of(error)} == {*files_of(failure.exception)} == {__file__}


def both(*_: Any) -> Any:
    return ONE, ONE


def tracer_of(x: Any) -> Any:
    kept: list[Any] = []
    jax.make_jaxpr(lambda x: kept.append(x) or x)(x)
    return kept[0]


WRONG: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "shape": (lambda *_: np.zeros(3, np.float32), F32, "returned float32[3] in place of float32[]"),
    "dtype": (lambda *_: np.int32(1), F32, "returned int32[] in place of float32[]"),
    "tree": (both, F32, "returned (float32[], float32[]) in place of float32[]"),
    "nothing": (lambda *_: None, F32, "returned None in place of float32[]"),
    "keys": (lambda *_: {"b": ONE}, {"a": F32}, "returned {'b': float32[]} in place of {'a': float32[]}"),
    "number": (lambda *_: 1.5, (F32, F32), "returned float in place of (float32[], float32[])"),
    "too large": (
        lambda *_: np.int64(2**40),
        jax.ShapeDtypeStruct((), np.int32),
        f"returned int64[] in place of int32[]: the value {2**40} does not fit int32",
    ),
    "text": (lambda *_: "words", F32, "returned 'words' of <class 'str'>, which no device can hold"),
    "texts": (
        lambda *_: np.array(["words"]),
        F32,
        "returned an array of dtype <U5, which no device can hold",
    ),
    "tracer": (
        lambda *_: tracer_of(ONE),
        F32,
        "returned a tracer, float32[], which has no value outside of the function that JAX was tracing",
    ),
}
RESULTS: dict[str, Callable[..., Any]] = {
    "call": lambda f, shape: hcb.call(f, ONE, result_shape=shape),
    "pure_callback": lambda f, shape: hcb.pure_callback(f, shape, ONE),
    "io_callback": lambda f, shape: hcb.io_callback(f, shape, ONE, ordered=True),
    "dlpack_callback": lambda f, shape: hcb.dlpack_callback(f, shape)(ONE),
}


@STAGES
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", RESULTS)
def test_results_that_do_not_match(kind: str, wrong: str, stage: Any) -> None:
    function, shape, did = WRONG[wrong]
    error = ended(lambda: stage(lambda: RESULTS[kind](function, shape))())
    first, second = str(error).splitlines()[:2]
    assert first == f"{kind}: {hcb_name(function)}, on cpu:0, {did}", error
    assert second.startswith("The computation has ended: expected ")
    asked = "result_shape" if kind == "call" else "result_shape_dtypes"
    assert f"Correct the callback, or {asked} if it is right as it is." in str(error)
    assert str(barrier()).splitlines()[0] == first


@pytest.mark.parametrize("name", [name for name in hcb.__all__ if name.endswith(("Error", "Exception", "Warning"))])
def test_a_traceback_names_an_exception_as_a_program_catches_it(name: str) -> None:
    error = getattr(hcb, name)
    public = "CallbackException" if name == "TapFunctionException" else name
    assert f"{error.__module__}.{error.__qualname__}" == f"hostcb.{public}"


CALLED = "id_tap calls tap_func(arg, transforms), and tap_func(arg, transforms, device=…) if tap_with_device=True."


@STAGES
@pytest.mark.parametrize(
    ("function", "with_device"),
    [(lambda arg: None, False), (lambda arg, transforms: None, True)],
    ids=["two", "device"],
)
def test_a_tap_with_other_parameters_is_told_how_it_is_called(
    function: Any, with_device: bool, stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    jax.block_until_ready(stage(lambda x: hcb.id_tap(function, x, tap_with_device=with_device))(ONE))
    text = str(barrier())
    assert CALLED in text
    assert CALLED in caplog.text


def test_a_type_error_of_the_tap_itself_is_not_about_its_parameters() -> None:
    hcb.id_tap(lambda arg, transforms: len(3), ONE)  # type: ignore[arg-type]
    assert CALLED not in str(barrier())


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_result_without_the_axis_of_the_batch_that_vmap_passed(method: str) -> None:
    def batched(x: Any) -> Any:
        return hcb.pure_callback(lambda x: x.sum(), F32, x, vmap_method=method)

    error = ended(lambda: jax.vmap(batched)(jnp.ones(3)))
    assert "returned float32[] in place of float32[3]" in str(error).splitlines()[0]
    advice = f"vmap_method={method!r} passes a whole batch to the callback: its results need the batch's axis in front."
    assert advice in str(error)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    unbatched = ended(lambda: hcb.pure_callback(lambda x: x, F32, jnp.ones(3), vmap_method=method))
    assert "vmap_method" not in str(unbatched)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


def hcb_name(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"


def test_an_in_place_function_that_returns_something() -> None:
    error = ended(lambda: jax.jit(hcb.buffer_callback(both, F32))(ONE))
    assert str(error).splitlines()[0] == (
        f"buffer_callback: {hcb_name(both)}, on cpu:0, returned something in place of writing into `out`"
    )
    barrier()


def test_of_several_failures_the_last_comes_first() -> None:
    hcb.id_tap(both, ONE)
    hcb.id_tap(save, ONE)
    hcb.id_print(ONE, output_stream=Full())
    lines = str(barrier()).splitlines()
    assert lines[0].startswith("id_print: ")
    assert lines[-2].startswith("2 callbacks failed since the last barrier")
    # It is often the reason of the others.
    assert lines[-1] == f"The first: id_tap: {SAVE}, on cpu:0, raised OSError: disk full …"


def test_equal_failures_are_not_repeated() -> None:
    for _ in range(2):
        hcb.id_tap(save, ONE)
    assert str(barrier()).splitlines()[-1].startswith("2 callbacks failed since the last barrier")


def test_the_first_of_very_many_failures_is_in_the_text() -> None:
    for number in range(1100):
        failure_log.record("f", None, ValueError(f"number {number}"), postponed=True)
    reported = barrier()
    *_, last = str(reported).splitlines()
    assert last == "The first: callback: f raised ValueError: number 0" and len(reported.failures) == 1000


def test_several_devices_where_the_runtime_has_the_first_word() -> None:
    """A thread of the runtime ends the computation, so the runtime makes the text; hostcb's first line is in it."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    program = jax.jit(jax.shard_map(lambda x: hcb.io_callback(save, x, x), mesh=mesh, in_specs=jax.P("d"),
                                    out_specs=jax.P("d")))  # fmt: skip
    assert f"io_callback: {SAVE}, on cpu:" in str(ended(lambda: program(np.ones(8, np.float32))))
    reported = barrier()
    assert len(reported.failures) == 8
    assert {failure.headline for failure in reported.failures} == {
        f"io_callback: {SAVE}, on {device}, raised OSError: disk full …" for device in jax.devices()
    }


# Errors while tracing ---------------------------------------------------------------------------------------------


def fine(*_: Any, **__: Any) -> Any:
    return ONE


FINE = hcb_name(fine)
ALL: dict[str, Callable[..., Any]] = {
    "id_tap": lambda x: hcb.id_tap(fine, x),
    "id_print": lambda x: hcb.id_print(x, what="x"),
    "call": lambda x: hcb.call(fine, x, result_shape=F32),
    "pure_callback": lambda x: hcb.pure_callback(fine, F32, x),
    "io_callback": lambda x: hcb.io_callback(fine, F32, x),
    "buffer_callback": lambda x: hcb.buffer_callback(fine, F32)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(fine, F32)(x),
}


def refused(call: Callable[[], Any]) -> Exception:
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        call()
    error = caught.value
    assert files_of(error)[-1] == __file__, files_of(error)
    return error


@STAGES
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("leaf", "why"), [(object(), "every leaf of "), (2**70, f"the number {2**70} does not fit")])
def test_operands_that_are_no_values(kind: str, leaf: Any, why: str, stage: Any) -> None:
    who = "'what: x'" if kind == "id_print" else FINE
    assert str(refused(lambda: stage(lambda: ALL[kind](leaf))())).startswith(f"{kind}: {who}: {why}")


@pytest.mark.parametrize("kind", ["call", "pure_callback", "io_callback", "buffer_callback", "dlpack_callback"])
def test_derivatives_and_batches(kind: str) -> None:
    error = refused(lambda: jax.grad(ALL[kind])(jnp.float32(1)))
    assert str(error).startswith(f"{kind}: {FINE} was differentiated. ")
    if kind != "io_callback":
        error = refused(lambda: jax.vmap(ALL[kind])(jnp.ones(3)))
        assert str(error).startswith(f"{kind}: {FINE} was batched by vmap. ")


def test_ordered_and_once() -> None:
    error = refused(lambda: jax.vmap(lambda x: hcb.io_callback(fine, F32, x, ordered=True))(jnp.ones(3)))
    assert str(error).startswith(f"io_callback: {FINE} was batched by vmap. ")

    def branch(x: Any) -> Any:
        return jax.lax.cond(x > 0, ALL["io_callback"], lambda x: x, x)

    assert str(refused(lambda: jax.vmap(branch)(jnp.ones(3)))).startswith(f"io_callback({FINE}): ")

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x < 3, lambda x: x + ALL["io_callback"](x), x)

    assert str(refused(lambda: jax.vmap(loop)(jnp.ones(3)))).startswith(f"io_callback({FINE}): ")


def generator(*_: Any) -> Any:
    yield 1


ARGUMENTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "keywords": (f"id_tap: {FINE}: id_tap() got unexpected keyword", lambda: hcb.id_tap(fine, ONE, what=3)),
    "tap function": ("id_tap: tap_func must be callable", lambda: hcb.id_tap(3, ONE)),
    "function": ("call: callback_func must be callable", lambda: hcb.call(3, ONE)),
    "generator": ("pure_callback: callback must be", lambda: hcb.pure_callback(generator, F32, ONE)),
    "buffers": ("buffer_callback: callback must be callable", lambda: hcb.buffer_callback(3, F32)),
    "dlpack": ("dlpack_callback: fn must be callable", lambda: hcb.dlpack_callback(3, F32)),
    "debug": ("debug.callback: callback must be callable", lambda: debug.callback(3)),
    "two calls": ("debug.callback: callback must be callable", lambda: debug.callback(ordered=True)(3)),
    "no call": ("debug.callback received unexpected", lambda: debug.callback(x=3)),
    "jax_arrays": ("jax_arrays: function must be callable", lambda: hcb.jax_arrays(3)),
    "stream": ("id_print: output_stream must have", lambda: hcb.id_print(ONE, output_stream=3)),
    "format": ("debug.print: the format must be", lambda: debug.print(3)),
    "position": ("debug.print: the format string '{}' asks for", lambda: debug.print("{}")),
    "name": ("debug.print: the format string '{x}' asks for 'x'", lambda: debug.print("{x}")),
    "unused": ("debug.print: the format string 'a' does not match", lambda: debug.print("a", 3)),
    "path": ("hostcb.trace: path must be", lambda: hcb.trace(3)),
    "index": (f"id_tap: {FINE}: device_index must be 0", lambda: hcb.id_tap(fine, ONE, device_index=-1)),
    "no index": (f"call: {FINE}: device_index must be an", lambda: hcb.call(fine, ONE, device_index="0")),
    "method": (f"call: {FINE}: vmap_method must be", lambda: hcb.call(fine, ONE, vmap_method="all")),
    "sharding": (f"io_callback: {FINE}: sharding must be", lambda: hcb.io_callback(fine, None, ONE, sharding=3)),
    "shape": (f"call: {FINE}: result_shape='a' does not", lambda: hcb.call(fine, ONE, result_shape="a")),
    "shapes": (f"pure_callback: {FINE}: result_shape_dtypes=1.5", lambda: hcb.pure_callback(fine, 1.5, ONE)),
    "64 bits": (
        f"io_callback: {FINE}: result_shape_dtypes cannot specify 64-bit",
        lambda: hcb.io_callback(fine, jax.ShapeDtypeStruct((), np.float64)),
    ),
    "alias": (
        f"buffer_callback: {FINE}: input_output_aliases contains the mapping '3:0'",
        lambda: hcb.buffer_callback(fine, F32, input_output_aliases={3: 0})(ONE),
    ),
    "aliases": (
        f"dlpack_callback: {FINE}: input_output_aliases must be a dict",
        lambda: hcb.dlpack_callback(fine, F32, input_output_aliases=3)(ONE),
    ),
    "packed": (f"buffer_callback: {FINE}: int4 has less", lambda: ALL["buffer_callback"](jnp.ones((), jnp.int4))),
    "ref": (f"dlpack_callback: {FINE}: ", lambda: ALL["dlpack_callback"](jax.new_ref(jnp.float32(1)))),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments(argument: str) -> None:
    first, call = ARGUMENTS[argument]
    assert str(refused(call)).startswith(first)


def test_barriers_in_a_callback_end_in_the_users_file() -> None:
    hcb.id_tap(lambda *_: hcb.barrier_wait("inner"), ONE)
    failure = barrier().failures[0]
    assert "barrier_wait[inner] was called from inside a callback" in failure.headline
    assert {*files_of(failure.exception)} == {__file__}


def test_frames_are_shown_to_those_who_ask() -> None:
    ended = run_program(
        """
import traceback
jax.config.update("jax_traceback_filtering", "off")
def fail(*_): raise OSError
try:
    hcb.id_tap(3, 1.0)
except TypeError as error:
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
hcb.id_tap(fail, 1.0)
try:
    hcb.barrier_wait()
except hcb.CallbackException as error:
    print([frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)])
""",
        devices=None,
    ).check()
    assert ended.lines == ["['<module>', 'id_tap', 'check_callable']", "['deliver', '<lambda>', 'fail']"], str(ended)


def test_a_mistake_of_hostcb_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostcb._api import host_callback

    monkeypatch.setattr(host_callback, "bind", None)
    with pytest.raises(TypeError, match="not callable") as caught:
        hcb.call(fine, ONE)
    assert files_of(caught.value)[-1] == host_callback.__file__


# NumPy arrays for those who expect JAX's --------------------------------------------------------------------------

ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "at": lambda x: x.at[0].set(1),
    "block_until_ready": lambda x: x.block_until_ready(),
    "devices": lambda x: x.devices(),
    "sharding": lambda x: x.sharding,
    "addressable_data": lambda x: x.addressable_data(0),
}
USES: dict[str, Callable[[Any], Any]] = {
    "id_tap": lambda f: hcb.id_tap(lambda x, _: f(x), jnp.ones(2)),
    "call": lambda f: hcb.call(f, jnp.ones(2)),
    "pure_callback": lambda f: hcb.pure_callback(f, jnp.ones(2), jnp.ones(2)),
    "io_callback": lambda f: hcb.io_callback(f, None, jnp.ones(2)),
    "debug.callback": lambda f: debug.callback(f, jnp.ones(2)),
}


def text_of(kind: str, function: Callable[[Any], Any]) -> str:
    try:
        jax.block_until_ready(USES[kind](function))
    except jax.errors.JaxRuntimeError as error:
        assert str(barrier().failures[0].text).strip() in str(error)
        return str(error)
    return str(barrier())


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@pytest.mark.parametrize("kind", USES)
def test_attributes_of_jax_arrays_have_advice(kind: str, attribute: str) -> None:
    text = text_of(kind, ATTRIBUTES[attribute])
    assert f"object has no attribute '{attribute}'" in text.splitlines()[0]
    assert f".{attribute} is of jax.Array: wrap the callback in hostcb.jax_arrays(…)" in text
    assert ("hostcb_jax_arrays" in text) == (kind not in ("id_tap", "call"))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.nowhere, lambda x: "text".at, lambda x: [x].sharding, lambda x: getattr(object(), "at")],
    ids=["other name", "text", "list", "object"],
)
def test_other_attributes_have_no_advice(function: Callable[[Any], Any]) -> None:
    assert "jax_arrays" not in text_of("io_callback", function)


def test_an_exception_with_attributes_of_its_own_is_a_failure_like_any_other() -> None:
    class Odd(AttributeError):
        __notes__ = 3

        @property
        def obj(self) -> Any:
            raise RuntimeError("not this")

    for error in (Odd("planted"), AttributeError("planted", name=3, obj=np.ones(2))):
        hcb.id_tap(lambda *_, error=error: (_ for _ in ()).throw(error), jnp.ones(2))
        failed = barrier()
        assert failed.failures[0].exception is error and "planted" in failed.failures[0].headline


def test_an_exception_that_is_raised_again_has_the_advice_once() -> None:
    kept: list[AttributeError] = []

    def again(x: Any, _: Any) -> None:
        try:
            raise kept[0] if kept else x.at
        except AttributeError as error:
            kept.append(error)
            raise

    for _ in range(3):
        hcb.id_tap(again, jnp.ones(2))
    assert len(barrier().failures) == 3
    assert len(kept[0].__notes__) == 1


# Types for annotations --------------------------------------------------------------------------------------------


@pytest.mark.contract("B6")
@STAGES
def test_the_arguments_of_buffer_callbacks_have_public_types(stage: Any) -> None:
    from jax.experimental import buffer_callback

    seen: list[bool] = []

    def double(ctx: hcb.ExecutionContext, out: hcb.Buffer, x: hcb.Buffer) -> None:
        seen.append(isinstance(ctx, hcb.ExecutionContext) and isinstance(out, hcb.Buffer) and isinstance(x, hcb.Buffer))
        seen.append(ctx.stage is hcb.ExecutionStage.EXECUTE)
        np.multiply(np.asarray(x), 2, out=np.asarray(out))

    assert float(stage(hcb.buffer_callback(double, F32))(ONE)) == 2
    assert seen == [True, True]
    for name in ("Buffer", "ExecutionContext", "ExecutionStage"):
        assert getattr(hcb, name) is getattr(buffer_callback, name)
