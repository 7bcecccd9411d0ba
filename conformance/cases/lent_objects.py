"""Fault cells of the objects that a DLPack callback is lent, of what it returns, and of its stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of, unequal
from .harness.registry import planted
from .traces import library

START = np.arange(4, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct(START.shape, START.dtype)

seen_as = partial(unequal, "wrong callback", Stage.CALLBACK)


@planted("jit", "dlpack_callback", "D1")
def used_after_return(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: while it runs, a DLPack callback has an object of the operand's shape and type; afterwards it raises."""
    kept: list[Any] = []
    seen: list[Any] = []

    def look(operand: Any) -> Any:
        kept.append(operand)
        seen.append(
            (operand.shape, operand.ndim, np.dtype(operand.dtype).name, repr(operand), operand.__dlpack_device__())
        )
        halves = np.asarray(operand, np.float16)
        copied = np.array(operand, copy=True)
        seen.append((halves.dtype.name, halves.tolist(), copied.tolist(), np.asarray(operand).tolist()))
        copied += 1
        seen.append(np.asarray(operand).tolist())
        return np.asarray(np.from_dlpack(operand), np.float32) + np.float32(1)

    wanted = jax.ShapeDtypeStruct((4,), np.float32)
    result = np.asarray(jax.jit(library(bench).dlpack_callback(look, wanted))(START))
    numbers = START.tolist()
    facts = ((4,), 1, "float32", "Lent(float32[4])", (1, 0))
    anomalies = seen_as("its operand", seen, [facts, ("float16", numbers, numbers, numbers), numbers])
    if not np.array_equal(result, START + 1):
        anomalies.append(Anomaly("result", Stage.RESULT, f"it gave {result}, expected {START + 1}"))
    return anomalies + _refused_later(kept[:1])


def _refused_later(kept: list[Any]) -> list[Anomaly]:
    """Each of these was lent to a function that has returned. After one that still has memory no other is used."""
    anomalies: list[Anomaly] = []
    uses: dict[str, Callable[[Any], Any]] = {
        "shape": lambda one: one.shape,
        "np.asarray": np.asarray,
        "np.from_dlpack": np.from_dlpack,
    }
    for number, one in enumerate(kept):
        for name, use in uses.items():
            error = error_of(lambda use=use, one=one: use(one))  # type: ignore[misc]
            if not isinstance(error, BufferError):
                witness = f"{name} of number {number} of the buffers that were lent and returned came to {error!r}"
                return [*anomalies, Anomaly("not refused", Stage.CALLBACK, witness)]
            anomalies += seen_as("the error's words", "Copy what should be kept" in str(error), True)
    return anomalies


@planted("jit", "dlpack_callback", "D1")
def all_used_after_return(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: as above, of several operands and results, by place and by name, and of a function that raised."""
    kept: list[Any] = []

    def copies(out: Any, *operands: Any, fails: bool = False, **named: Any) -> None:
        lent = [*operands, *named.values()]
        kept.extend([*out, *lent])
        for result, operand in zip(out, lent, strict=True):
            np.asarray(result)[...] = np.asarray(operand)
        if fails:
            raise ValueError(PLANTED)

    operands = (START, START + 1, START + 2)
    likes = [jax.ShapeDtypeStruct((4,), np.float32)] * 3
    through = library(bench).dlpack_callback(copies, likes, in_place=True)
    found = jax.jit(lambda first, second, third: through(first, second, third=third))(*operands)
    anomalies = seen_as("copies", np.asarray(found).tolist(), np.asarray(operands).tolist())
    anomalies += seen_as("how many were lent", len(kept), 6)
    anomalies += _refused_later(kept)
    kept.clear()
    fails = library(bench).dlpack_callback(lambda *args: copies(*args, fails=True), likes, in_place=True)
    error = error_of(lambda: jax.block_until_ready(jax.jit(fails)(*operands)))
    error_of(bench.implementation.barrier)
    anomalies += seen_as("whether its error came", PLANTED in str(error), True)
    return anomalies + _refused_later(kept)


@planted("jit", "dlpack_callback", "D1")
def one_used_after_return(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: as above, of one result that the function writes itself."""
    kept: list[Any] = []

    def copy(out: Any, operand: Any) -> None:
        kept.extend([out, operand])
        np.asarray(out)[...] = np.asarray(operand)

    found = jax.jit(library(bench).dlpack_callback(copy, LIKE, in_place=True))(START)
    anomalies = seen_as("a copy", np.asarray(found).tolist(), START.tolist())
    return anomalies + seen_as("how many were lent", len(kept), 2) + _refused_later(kept)


@planted("jit", "dlpack_callback", "D1 B2")
def converts_as_numpy(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1, B2: NumPy's own requests are kept: no copy where there must be none, another type, and results to write."""
    seen: list[Any] = []

    def fill(out: Any, operand: Any) -> None:
        array = operand.__array__(copy=False)
        for dtype in (np.float64, np.int32):
            error = error_of(lambda dtype=dtype: operand.__array__(dtype, copy=False))  # type: ignore[misc]
            seen.append(type(error).__name__)
        copied = [operand.__array__(np.float64), operand.__array__(np.float32, copy=True)]
        seen.append([(each.dtype.name, np.shares_memory(each, array)) for each in copied])
        same = [operand.__array__(np.float32, copy=False), operand.__array__(np.float32)]
        seen.append([np.shares_memory(each, array) for each in same])
        through = np.from_dlpack(out)
        seen.append(through.flags.writeable)
        through[...] = np.from_dlpack(operand) + 1

    for _ in range(2):
        seen.clear()
        error = None
        try:
            found = np.asarray(jax.jit(library(bench).dlpack_callback(fill, LIKE, in_place=True))(START)).tolist()
        except Exception as raised:
            error, found = raised, None
        own = [("float64", False), ("float32", False)]
        anomalies = seen_as("what it was given", seen, ["ValueError", "ValueError", own, [True, True], True])
        anomalies += seen_as("its result", (error, found), (None, (START + 1).tolist()))
        if error is not None:
            error_of(bench.implementation.barrier)
        if anomalies:
            return anomalies
    return check_quiet_barrier(bench, "after a result that NumPy wrote")


@planted("jit", "dlpack_callback", "D1")
def returned_in_place(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: a function that writes its results itself, one or several, fails if it returns something."""
    anomalies: list[Anomaly] = []
    for likes in (LIKE, (LIKE,), (LIKE, LIKE)):

        def returning(out: Any, operand: Any) -> Any:
            for each in jax.tree.leaves(out):
                np.asarray(each)[...] = np.asarray(operand)
            return np.asarray(operand)

        program = jax.jit(library(bench).dlpack_callback(returning, likes, in_place=True))
        error = error_of(lambda program=program: jax.block_until_ready(program(START)))  # type: ignore[misc]
        error_of(bench.implementation.barrier)
        if not isinstance(error, jax.errors.JaxRuntimeError) or "must not return" not in str(error):
            witness = f"what a function with the results {likes} returned came to {error!r}"
            anomalies.append(Anomaly("not refused", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "dlpack_callback", "D1")
def streams_by_name(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: `with_stream` passes the stream in each form of a call; without it a user may name an argument so."""
    make = library(bench).dlpack_callback
    absent = "none was passed"
    streams: list[Any] = []

    def double(operand: Any, *, scale: Any = None, stream: Any = absent) -> Any:
        streams.append(stream)
        return 2 * np.asarray(operand)

    def twice(operand: Any, *, stream: Any = absent) -> Any:
        return (double(operand, stream=stream),) * 2

    def fill(out: Any, operand: Any, *, stream: Any = absent) -> None:
        doubled = double(operand, stream=stream)
        for each in jax.tree.leaves(out):
            np.asarray(each)[...] = doubled

    forms: dict[str, Callable[[Any], Any]] = {
        "one result": make(double, LIKE, with_stream=True),
        "an argument by name": lambda x: make(double, LIKE, with_stream=True)(x, scale=x),
        "two results": make(twice, (LIKE, LIKE), with_stream=True),
        "one in place": make(fill, LIKE, with_stream=True, in_place=True),
        "two in place": make(fill, (LIKE, LIKE), with_stream=True, in_place=True),
        "with effects": make(double, LIKE, with_stream=True, has_side_effect=True),
    }
    anomalies: list[Anomaly] = []
    on_cpu = bench.devices[0].platform == "cpu"
    for what, program in forms.items():
        streams.clear()
        results = jax.tree.leaves(jax.jit(program)(START))
        anomalies += check_quiet_barrier(bench, f"after {what}")
        anomalies += seen_as(what, [np.asarray(each).tolist() for each in results], [[0, 2, 4, 6]] * len(results))
        right = len(streams) == 1 and (streams[0] is None if on_cpu else type(streams[0]) is int)
        anomalies += seen_as(f"the stream, of {what}, {streams}, and whether it is the right one", right, True)

    def added(operand: Any, stream: Any) -> Any:
        return np.asarray(operand) + np.asarray(stream)

    found = jax.jit(lambda x: make(added, LIKE)(x, stream=x + 1))(START)
    anomalies += seen_as("an argument of that name", np.asarray(found).tolist(), (2 * START + 1).tolist())
    for options in ({}, {"in_place": True}):
        function = make(added, LIKE, with_stream=True, **options)
        error = error_of(lambda function=function: jax.jit(lambda x: function(x, stream=x))(START))  # type: ignore[misc]
        if not isinstance(error, TypeError) or "with_stream" not in str(error):
            said = "nothing" if error is None else summary(error)
            witness = f"an argument `stream` beside with_stream=True came to {said}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies


@planted("jit", "dlpack_callback", "D1 H18")
def stream_of_an_equal_callback(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D1: a function that is used with its stream and without one is called in both ways, in jit and outside of it."""
    make = library(bench).dlpack_callback
    passed: list[bool] = []

    def double(operand: Any, **options: Any) -> Any:
        passed.append("stream" in options)
        return 2 * np.asarray(operand)

    anomalies: list[Anomaly] = []
    for how in ("outside jit", "in jit"):
        passed.clear()
        for with_stream in (False, True, False):
            function = make(double, LIKE, with_stream=with_stream)
            found = np.asarray((jax.jit(function) if how == "in jit" else function)(jnp.asarray(START)))
            anomalies += seen_as(f"the result {how}", found.tolist(), (2 * START).tolist())
        anomalies += seen_as(f"whether a stream was passed {how}", passed, [False, True, False])
    return anomalies


@jax.tree_util.register_pytree_node_class
class _Shapes(dict[str, Any]):
    """A container of results that can be called, as some libraries have for a model; hostcb must not call it."""

    def __call__(self, *operands: Any) -> Any:
        raise RuntimeError("a container was called")

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: tuple[Any, ...]) -> _Shapes:
        return cls(zip(names, values, strict=True))


class _Layer:
    """One result by its shape and type, which can be called, as a layer of a model; hostcb must not call it either."""

    shape, dtype = START.shape, START.dtype

    def __call__(self, *operands: Any) -> Any:
        raise RuntimeError("a layer was called")


@planted("jit", "dlpack_callback", "D2")
def shapes_that_can_be_called(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D2: a container of results, or one result, that can be called is none of the functions that make the shapes."""

    def both(operand: Any) -> Any:
        return _Shapes(a=np.asarray(operand) + np.float32(1), b=2 * np.asarray(operand))

    found = jax.jit(library(bench).dlpack_callback(both, _Shapes(a=LIKE, b=LIKE)))(START)
    anomalies = seen_as("the container of the results", type(found), _Shapes)
    twice = library(bench).dlpack_callback(lambda operand: 2 * np.asarray(operand), _Layer())
    for how, run in (("in jit", jax.jit(twice)), ("outside jit", twice)):
        anomalies += check_value(f"a layer as a shape {how}", lambda run=run: run(jnp.asarray(START)), 2 * START)  # type: ignore[misc]
    wanted = {"a": (START + 1).tolist(), "b": (2 * START).tolist()}
    return anomalies + seen_as("results", {name: np.asarray(each).tolist() for name, each in found.items()}, wanted)


@planted("jit", "dlpack_callback", "D2")
def shapes_of_each_call(bench: Bench, callback: Callback) -> list[Anomaly]:
    """D2: a function that makes the shapes makes them anew for each call, of other shapes and types, in one program."""
    double = library(bench).dlpack_callback(lambda x: 2 * np.from_dlpack(x), lambda x: x)
    operands = (START, np.arange(6, dtype=np.int32), np.ones((2, 3), np.float32))
    anomalies: list[Anomaly] = []
    for how, program in (("in jit", jax.jit(lambda *each: [double(x) for x in each])), ("outside jit", None)):
        given = [jnp.asarray(each) for each in operands]
        found = [double(x) for x in given] if program is None else program(*given)
        for each, operand in zip(found, operands, strict=True):
            what = f"twice {operand.dtype}{operand.shape} {how}"
            wanted = (operand.dtype.name, (2 * operand).tolist())
            anomalies += seen_as(what, (each.dtype.name, np.asarray(each).tolist()), wanted)
    # What JAX can make an array from has a shape, too.
    twice = np.asarray(double(START.data))
    return anomalies + seen_as("twice a buffer of Python", twice.tolist(), (2 * START).tolist())


@planted("jit", "buffer_callback dlpack_callback", "B3", functions="barrier_wait")
def aliased_by_name(bench: Bench, callback: Callback) -> list[Anomaly]:
    """B3: an operand that is passed by name may share its memory with a result: by its place among all leaves."""
    namespace = library(bench)
    make = namespace.buffer_callback if callback.function == "buffer_callback" else namespace.dlpack_callback
    options = {} if callback.function == "buffer_callback" else {"in_place": True}
    seen: list[Any] = []

    def add(*arguments: Any, y: Any) -> None:
        out, x = arguments[-2:]
        seen.append(np.asarray(out).tolist())
        np.asarray(out)[...] += np.asarray(x)

    function = make(add, LIKE, input_output_aliases={1: 0}, **options)
    found = jax.jit(lambda x: function(x, y=x + 10))(jnp.asarray(START))
    anomalies = check_quiet_barrier(bench, "after an alias by name")
    anomalies += seen_as("what a result held at first", seen, [(START + 10).tolist()])
    return anomalies + seen_as("the result", np.asarray(found).tolist(), (2 * START + 10).tolist())
