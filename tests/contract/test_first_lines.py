"""The first line of each error says what failed and why; tracebacks end in the user's file (H32)."""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import first_lines
from support.first_lines import barrier, ended, files_in, files_of, name_of
from support.helpers import STAGES

import hostcb as hcb
from hostcb import debug
from hostcb._errors.failures import failure_log

pytestmark = pytest.mark.contract("H32")

F32, I32 = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int32)
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
    assert len(lines) == 2, "the traceback is the cause's, which Python shows"
    assert lines[1].endswith("the callback failed.") and "12345" not in lines[1]
    assert caplog.records == [], "the program has raised it"
    reported = barrier()
    assert str(reported).splitlines()[0] == first
    assert "has ended with this failure already" in str(reported)
    (failure,) = reported.failures
    assert (failure.headline, failure.kind, failure.ended) == (first, kind.partition(",")[0], True)
    assert failure.raised and pickle.loads(pickle.dumps(failure)).raised
    for each, asked_by in ((error, __file__), (error.__cause__, __file__), (reported, first_lines.__file__)):
        assert each is not None and files_of(each)[-1] == asked_by, files_of(each)
    assert {*files_of(error.__cause__)} == {__file__}, "the function's traceback has no frame of hostcb"


@pytest.mark.contract("H14", "H32")
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError])
@pytest.mark.parametrize("kind", TAPS)
def test_any_exception_of_a_tap_is_reported_at_each_run(
    kind: str, exception: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any, **__: Any) -> Any:
        raise exception("planted")

    monkeypatch.setitem(globals(), "save", raises)
    monkeypatch.setattr(Full, "write", raises)
    # A function of its own: JAX finds what it has traced by the function.
    program = jax.jit(lambda x: TAPS[kind][1](x))
    for _ in range(2):
        assert float(program(ONE)) == 1
        (failure,) = barrier().failures
        assert f"raised {exception.__name__}: planted" in failure.headline
        assert type(failure.exception) is exception


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
    assert [record.getMessage() for record in caplog.records] == [f"{first} (the next barrier_wait raises it)"]
    (failure,) = error.failures
    assert (failure.headline, failure.kind, failure.ended) == (first, kind.partition(",")[0], False)
    assert not failure.raised
    assert pickle.loads(pickle.dumps(failure)).headline == first
    assert ({*files_of(error)}, {*files_of(failure.exception)}) == ({first_lines.__file__}, {__file__})


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
    "dict for a tuple": (
        lambda *_: {"a": ONE, "b": ONE},
        (F32, F32),
        "returned {'a': float32[], 'b': float32[]} in place of (float32[], float32[])",
    ),
    "nested keys": (
        lambda *_: [{"a": {"x": ONE}}, ONE],
        [{"a": {"y": F32}}, F32],
        "returned [{'a': {'x': float32[]}}, float32[]] in place of [{'a': {'y': float32[]}}, float32[]]",
    ),
    "number": (lambda *_: 1.5, (F32, F32), "returned float in place of (float32[], float32[])"),
    "fraction": (lambda *_: 1.5, I32, "returned float in place of int32[]"),
    "too large": (
        lambda *_: np.int64(2**40),
        I32,
        f"returned int64[] in place of int32[]: the value {2**40} does not fit int32",
    ),
    "too small": (
        lambda *_: np.int64(-(2**40)),
        I32,
        f"returned int64[] in place of int32[]: the value {-(2**40)} does not fit int32",
    ),
    "unsigned": (
        lambda *_: np.uint64(2**40),
        jax.ShapeDtypeStruct((), np.uint32),
        f"returned uint64[] in place of uint32[]: the value {2**40} does not fit uint32",
    ),
    "in an array": (
        lambda *_: np.array([1, 2, 2**35, 4]),
        jax.ShapeDtypeStruct((4,), np.int32),
        f"returned int64[4] in place of int32[4]: the value {2**35} does not fit int32",
    ),
    "of no type": (lambda *_: 2**70, I32, f"returned the integer {2**70}, which fits no type of a device"),
    "narrower": (lambda *_: np.float16(1), F32, "returned float16[] in place of float32[]"),
    "wider": (
        lambda *_: np.float64(1),
        jax.ShapeDtypeStruct((), np.float16),
        "returned float64[] in place of float16[]",
    ),
    "no elements": (
        lambda *_: np.zeros(0, np.int64),
        jax.ShapeDtypeStruct((0,), np.int8),
        "returned int64[0] in place of int8[0]",
    ),
    "row": (
        lambda *_: np.zeros((1, 3), np.float32),
        jax.ShapeDtypeStruct((3, 1), np.float32),
        "returned float32[1,3] in place of float32[3,1]",
    ),
    "array of one": (lambda *_: np.zeros(1, np.float32), F32, "returned float32[1] in place of float32[]"),
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


# XLA replaces a pure call whose result has no elements with a constant, so its function does not run.
DROPPED = {(kind, "no elements") for kind in ("pure_callback", "dlpack_callback")}
RETURNED = [(kind, wrong) for kind in RESULTS for wrong in WRONG if (kind, wrong) not in DROPPED]


@STAGES
@pytest.mark.parametrize(("kind", "wrong"), RETURNED)
def test_results_that_do_not_match(kind: str, wrong: str, stage: Any) -> None:
    function, shape, did = WRONG[wrong]
    error = ended(lambda: stage(lambda: RESULTS[kind](function, shape))())
    first, second = str(error).splitlines()[:2]
    assert first == f"{kind}: {name_of(function)}, on cpu:0, {did}", error
    # Where the first line has both, they are not said again.
    if " in place of " in did:
        assert second.startswith("The computation has ended. Correct ")
    else:
        assert second.startswith("The computation has ended: expected ")
        assert "but the callback returned something else" in second
    assert "12345" not in str(error)
    assert error.__cause__ is None and error.__context__ is None, "Python would show hostcb's words twice"
    asked = "result_shape" if kind == "call" else "result_shape_dtypes"
    assert f"Correct the callback, or {asked} if it is right as it is." in str(error)
    assert str(barrier()).splitlines()[0] == first


@pytest.mark.parametrize("name", [name for name in hcb.__all__ if name.endswith(("Error", "Exception", "Warning"))])
def test_a_traceback_names_an_exception_as_a_program_catches_it(name: str) -> None:
    error = getattr(hcb, name)
    public = "CallbackException" if name == "TapFunctionException" else name
    assert f"{error.__module__}.{error.__qualname__}" == f"hostcb.{public}"


@pytest.mark.parametrize("kind", ["call", "pure_callback"])
@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_a_result_without_the_axis_of_the_batch_that_vmap_passed(method: str, kind: str) -> None:
    def calling(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if kind == "call":
            return lambda x: hcb.call(function, x, result_shape=F32, vmap_method=method)
        return lambda x: hcb.pure_callback(function, F32, x, vmap_method=method)

    error = ended(lambda: jax.vmap(calling(lambda x: x.sum()))(jnp.ones(3)))
    assert "returned float32[] in place of float32[3]" in str(error).splitlines()[0]
    advice = f"vmap_method={method!r} passes a whole batch to the callback: its results need the batch's axis in front."
    other_way = "'sequential' calls it for each element."
    assert f"{advice} {other_way}" in str(error)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    decides = lambda x: np.float32(1) if x > 0 else x
    raised = ended(lambda: jax.vmap(calling(decides))(jnp.ones(3)))
    assert "truth value" in str(raised).splitlines()[0]
    advice = f"a whole batch to the callback ({method!r}): its arguments have the batch's axis in front."
    assert f"{advice} {other_way}" in str(raised)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    unbatched = ended(lambda: calling(lambda x: x)(jnp.ones(3)))
    assert "vmap_method" not in str(unbatched)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@STAGES
@pytest.mark.parametrize("kind", ["buffer_callback", "dlpack_callback"])
def test_an_in_place_function_that_returns_something(kind: str, stage: Any) -> None:
    options = {"in_place": True} if kind == "dlpack_callback" else {}
    error = ended(lambda: stage(getattr(hcb, kind)(both, F32, **options))((ONE, ONE)))
    assert str(error).splitlines()[:2] == [
        f"{kind}: {name_of(both)}, on cpu:0, returned something in place of writing into `out`",
        "The computation has ended: expected float32[], written into `out`, but the callback returned something.",
    ]
    barrier()


@pytest.mark.contract("H15", "H32")
@pytest.mark.parametrize("kind", ["call", "debug.callback"])
def test_over_a_mesh_the_mark_of_a_failed_callback_is_named_where_it_crossed(kind: str) -> None:
    """Where one device calls for all, the others get the mark as its result. Parts have no result."""
    x = jax.device_put(np.arange(8.0), jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d")))
    programs = {
        "call": lambda x: hcb.call(save, x, result_shape=x),
        "debug.callback": lambda x: (debug.callback(save, x, partitioned=True), x)[1],
    }
    text = str(ended(lambda: jax.jit(programs[kind])(x)))
    if kind == "call":
        expected = "expected float32[8], but the callback failed (int8[12345] stands for it on the other devices)."
        assert text.splitlines()[1] == f"The computation has ended: {expected}"
    else:
        assert "ended, because the callback failed" in text and "12345" not in text
    barrier()


def test_of_several_failures_the_last_comes_first() -> None:
    hcb.id_tap(both, ONE)
    hcb.id_tap(save, ONE)
    hcb.id_print(ONE, output_stream=Full())
    lines = str(barrier()).splitlines()
    assert lines[0].startswith("id_print: ")
    names = ", ".join(sorted((SAVE, "a print without labels")))
    counted = f"{names} failed 2 times in all since the last barrier, the last time as above; "
    assert lines[-2] == f"{counted}see `.failures` for each."
    # It is often the reason of the others.
    assert lines[-1] == f"The first: id_tap: {SAVE}, on cpu:0, raised OSError: disk full …"


def test_equal_failures_are_not_repeated() -> None:
    for _ in range(2):
        hcb.id_tap(save, ONE)
    assert str(barrier()).splitlines()[-1].startswith(f"{SAVE} failed 2 times since the last barrier")


def test_the_first_of_very_many_failures_is_in_the_text() -> None:
    for number in range(1100):
        failure_log.record("f", None, ValueError(f"number {number}"), on_error="barrier")
    reported = barrier()
    *_, counted, last = str(reported).splitlines()
    assert last == "The first: callback: f raised ValueError: number 0"
    assert counted == (
        "f failed 1100 times since the last barrier, the last time as above; "
        "`.failures` has the first 500 and the last 500."
    )
    kept = [failure.exception.args[0] for failure in reported.failures]
    assert kept == [f"number {number}" for number in (*range(500), *range(600, 1100))]
    hcb.id_tap(save, ONE)
    assert " times" not in str(barrier())


def over_devices(layout: str, program: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if layout == "pmap":
        return jax.pmap(program)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    if layout == "shard_map":
        return jax.jit(jax.shard_map(program, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))
    return jax.jit(program, in_shardings=jax.sharding.NamedSharding(mesh, jax.P("d")))


@pytest.mark.parametrize("layout", ["pmap", "shard_map", "jit over a mesh"])
@pytest.mark.parametrize("kind", CALLS)
def test_what_ends_a_computation_on_several_devices(kind: str, layout: str) -> None:
    """A thread of the runtime ends it, and the runtime makes the error, whose text begins with words of its own."""
    who, call = CALLS[kind]

    def program(x: Any) -> Any:
        result = call(x.sum())
        return x if result is None else x + result

    error = ended(lambda: over_devices(layout, program)(np.ones(8, np.float32)))
    first, second, *rest = str(error).splitlines()
    one_calls = layout == "jit over a mesh" and kind not in ("buffer_callback", "dlpack_callback")
    callers = jax.devices()[:1] if one_calls else jax.devices()
    firsts = {f"{who}, on {device}, raised OSError: disk full …" for device in callers}
    assert first in firsts and second.startswith("The computation has ended"), error
    assert error.error_code == 13, "that of the runtime, INTERNAL"
    # The error has no cause, so the function's traceback is in the text, and nothing else.
    assert rest[0] == "Traceback (most recent call last):" and files_in(rest) == {__file__}, error
    assert rest[-2:] == ["OSError: disk full", "and more"], error
    reported = barrier()
    assert len(reported.failures) == len(callers)
    assert {failure.headline for failure in reported.failures} == firsts


@pytest.mark.parametrize("decorators", [1, 99, 100])
def test_the_line_is_that_of_the_function_inside_its_decorators(decorators: int) -> None:
    """A chain of a hundred counts as one without end, of which the outermost decorator is named."""

    def user(*_: Any) -> None:
        raise OSError("disk full")

    decorated: Any = user
    for _ in range(decorators):
        decorated = _decorated(decorated)
    named = (user if decorators < 100 else decorated).__code__
    hcb.id_tap(decorated, ONE)
    assert f"user ({__file__}:{named.co_firstlineno}), on cpu:0" in str(barrier()).splitlines()[0]


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper
