"""Fault cells of the words of errors: who failed, what came in place of which result, and what a device cannot hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library

SOMETHING_ELSE = "but the callback returned something else"


def _lacking(what: str, error: Exception | None, words: tuple[str, ...]) -> list[Anomaly]:
    if error is None:
        return [Anomaly("swallowed error", Stage.RESULT, f"{what}: the computation delivered a result")]
    return [
        Anomaly("poor error", Stage.DISPATCH, f"{what}: the error lacks {word!r}: {summary(error)}")
        for word in words
        if word not in str(error)
    ]


@planted("jit", "buffer_callback buffer_callback_side_effect", "B1 H15", functions="barrier_wait")
def returns_something(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The error of a function that should write, and returns something, says so, and not that it failed."""

    def host(context: Any, out: Any, operand: Any) -> Any:
        np.asarray(out)[...] = np.asarray(operand)
        return 1

    like = jax.ShapeDtypeStruct(bench.operand.shape, bench.operand.dtype)
    side_effect = callback.name.endswith("side_effect")
    program = jax.jit(library(bench).buffer_callback(host, like, has_side_effect=side_effect))
    error = error_of(lambda: jax.block_until_ready(program(bench.operand)))
    anomalies = _lacking("a function that returns a number", error, ("but the callback returned something",))
    if error is not None and "but the callback failed" in str(error):
        anomalies.append(Anomaly("poor error", Stage.DISPATCH, f"it is said to have failed: {summary(error)}"))
    error_of(bench.implementation.barrier)
    return anomalies + check_quiet_barrier(bench, "after a function that returned something")


# A process that has once asked for statistics counts to its end.
@planted("jit", "buffer_callback buffer_callback_side_effect", "B1 H15 H22 H29", functions="stats trace", isolated=True)
def returns_something_while_watched(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What a function returns is refused while a trace and statistics watch it as well, at each of its runs."""
    returned: Any = None

    def host(context: Any, out: Any, operand: Any) -> Any:
        np.asarray(out)[...] = np.asarray(operand)
        return returned

    like = jax.ShapeDtypeStruct(bench.operand.shape, bench.operand.dtype)
    side_effect = callback.name.endswith("side_effect")
    program = bench.compile(library(bench).buffer_callback(host, like, has_side_effect=side_effect))

    def ask(when: str) -> list[Anomaly]:
        nonlocal returned
        found: list[Anomaly] = []
        for returned in (1, np.zeros(3, np.float32), (), False, None):
            error = error_of(lambda: jax.block_until_ready(program(bench.operand)))
            error_of(bench.implementation.barrier)
            if returned is not None:
                words = ("but the callback returned something",)
                found += _lacking(f"{when}, a function that returns {returned!r}", error, words)
            elif error is not None:
                found.append(Anomaly("error", stage_of(error), f"{when}, without a result: {summary(error)}"))
        return found

    with tempfile.TemporaryDirectory() as folder, library(bench).trace(Path(folder) / "trace.json"):
        anomalies = ask("while a trace is on")
    library(bench).stats()
    anomalies += ask("with statistics")
    return anomalies + check_quiet_barrier(bench, "after functions that returned something")


class _Shown:
    """A callback without a name, but with a text."""

    def __call__(self, *operands: Any) -> Any:
        raise ValueError(PLANTED)

    def __repr__(self) -> str:
        return "<the planted object>"


class _Unshown(_Shown):
    """A callback without a name, whose text nobody can have."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def _named(*operands: Any) -> Any:
    raise ValueError(PLANTED)


class _Object:
    def method(self, *operands: Any) -> Any:
        raise ValueError(PLANTED)


class _Sized:
    """A container of results that takes arrays alone."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf
        self.size = leaf.size


jax.tree_util.register_pytree_node(_Sized, lambda one: ((one.leaf,), None), lambda _, leaves: _Sized(*leaves))


class _ClosedError(ValueError):
    """An exception that refuses each access to its attributes."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("closed")


@planted("jit", "id_tap call", "H14 H15")
def names_objects(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function is told by its name, and an object without one by its text, or by its class if it has no text."""
    anomalies = []
    one = jax.ShapeDtypeStruct(bench.operand.shape, np.float32)
    functions: dict[Any, str] = {
        _Shown(): "<the planted object>",
        _Unshown(): "_Unshown",
        _named: f"_named ({__file__}:{_named.__code__.co_firstlineno})",
        _Object().method: f"_Object.method ({__file__}:{_Object.method.__code__.co_firstlineno})",
    }
    for function, name in functions.items():
        # No function around it, which would have a name.
        if callback.function == "id_tap":
            program = jax.jit(lambda x, f=function: bench.implementation.tap(f, x))
        else:
            program = jax.jit(lambda x, f=function: bench.implementation.call(f, x, one))
        error = error_of(lambda: program(bench.operand))  # noqa: B023 - called at once
        if callback.function == "call":
            anomalies += _lacking("the error of the computation", error, (name, PLANTED))
        told = [str(failure.callback) for failure in getattr(error_of(bench.implementation.barrier), "failures", ())]
        if len(told) != 1 or name not in told[0]:
            witness = f"the barrier tells of a failure of {told}, expected {name!r}"
            anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies


@planted("jit", "call", "H15")
def says_what_came(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The text says which result is wrong, and for which reason: its shape, its type, or a number that does not fit."""
    call, pure = library(bench).call, library(bench).pure_callback

    def shape(*sizes: int, dtype: Any = np.float32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    too_large = np.full(2, 2**40)
    not_fitting = (SOMETHING_ELSE, f"the value {2**40} does not fit int32", "JAX_ENABLE_X64")
    cases: dict[str, tuple[Callable[[Any], Any], Any, tuple[str, ...]]] = {
        "a number that is too large": (lambda x: too_large, shape(2, dtype=np.int32), not_fitting),
        "an unsigned number that is too large": (
            lambda x: np.full(2, 2**40, np.uint64),
            shape(2, dtype=np.uint32),
            (SOMETHING_ELSE, f"the value {2**40} does not fit uint32"),
        ),
        "a number that is too large, after one that fits": (
            lambda x: np.array([5, 2**40]),
            shape(2, dtype=np.int32),
            not_fitting,
        ),
        "a number that is too small": (
            lambda x: np.array([-(2**40), 5]),
            shape(2, dtype=np.int32),
            (SOMETHING_ELSE, f"the value {-(2**40)} does not fit int32"),
        ),
        "a narrower float": (lambda x: np.zeros(2, np.float16), shape(2), (SOMETHING_ELSE, "float16[2]")),
        "a wider float": (lambda x: np.zeros(2), shape(2, dtype=np.float16), (SOMETHING_ELSE, "float64[2]")),
        "a text": (lambda x: "text", shape(), (SOMETHING_ELSE, "no device can hold")),
        "no numbers of another type": (
            lambda x: np.zeros(0, np.int64),
            shape(0, dtype=np.int8),
            (SOMETHING_ELSE, "int8[0]", "int64[0]"),
        ),
        # Of the same size as the expected one.
        "a row in place of a column": (
            lambda x: np.zeros((1, 3), np.float32),
            shape(3, 1),
            (SOMETHING_ELSE, "float32[3,1]", "float32[1,3]"),
        ),
        "an array of one in place of a number": (
            lambda x: np.zeros(1, np.float32),
            shape(),
            (SOMETHING_ELSE, "float32[]", "float32[1]"),
        ),
        "a masked array": (
            lambda x: np.ma.masked_less(np.arange(3, dtype=np.float32), 1),
            shape(3),
            (SOMETHING_ELSE, "masked array"),
        ),
        "a tree of an array and a number": (
            lambda x: (np.zeros(2, np.float32), 3.0),
            shape(2),
            (SOMETHING_ELSE, "(float32[2], float)"),
        ),
        "a list in place of a tuple": (
            lambda x: [np.float32(1), np.float32(2)],
            (shape(), shape()),
            (SOMETHING_ELSE,),
        ),
        "a tuple in place of a list": (
            lambda x: (np.float32(1), np.float32(2)),
            [shape(), shape()],
            (SOMETHING_ELSE,),
        ),
        "a container that reads its leaf": (
            lambda x: _Sized(np.float32(1)),
            (shape(), shape()),
            (SOMETHING_ELSE, "_Sized"),
        ),
        "an integer of more than 64 bits": (
            lambda x: 2**70,
            shape(dtype=np.int32),
            (SOMETHING_ELSE, str(2**70), "fits no type"),
        ),
    }
    anomalies = []
    for what, (function, wanted, words) in cases.items():
        program = jax.jit(lambda x, f=function, wanted=wanted: call(f, x, result_shape=wanted))
        anomalies += _lacking(what, error_of(lambda: program(bench.operand)), words)  # noqa: B023
    pair = (shape(), shape())
    several: dict[str, tuple[Callable[[Any], Any], Any, tuple[str, ...]]] = {
        "a number that is too large, of a pure callback": (lambda x: too_large, shape(2, dtype=np.int32), not_fitting),
        "the second of two results": (
            lambda x: (np.float32(1), np.zeros(2, np.float32)),
            pair,
            (SOMETHING_ELSE, "shape for return value #1", "Actual: (2,)"),
        ),
        "a row in place of a column, of a pure callback": (
            lambda x: np.zeros((1, 3), np.float32),
            shape(3, 1),
            (SOMETHING_ELSE, "Expected: (3, 1)", "Actual: (1, 3)"),
        ),
        "other names": (
            lambda x: {"a": np.float32(1), "c": np.float32(2)},
            {"a": shape(), "b": shape()},
            (SOMETHING_ELSE, "keys of dicts differ", "a, b", "a, c"),
        ),
        "another name above the same one": (
            lambda x: {"a": {"x": np.float32(1)}, "c": {"x": np.float32(2)}},
            {"a": {"x": shape()}, "b": {"x": shape()}},
            (SOMETHING_ELSE, "keys of dicts differ", "a.x, b.x", "a.x, c.x"),
        ),
    }
    for what, (function, wanted, words) in several.items():
        program = jax.jit(lambda x, f=function, wanted=wanted: jax.tree.leaves(pure(f, wanted, x))[-1])
        anomalies += _lacking(what, error_of(lambda: program(bench.operand)), words)  # noqa: B023
    error_of(bench.implementation.barrier)
    return anomalies


@planted("jit", "id_tap call", "H14 H15 H32")
def says_all_of_odd_failures(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An exception with a null character in its text, or one that refuses its attributes, is told to its end."""

    def ends_in_the_middle(*operands: Any) -> Any:
        raise ValueError("a record\0and its end")

    def colours(*operands: Any) -> Any:
        raise ValueError("a \x1b[31mred record\nand its end")

    def is_closed(*operands: Any) -> Any:
        raise _ClosedError("x")

    def takes_it_for_jax(*operands: Any) -> Any:
        total: Any = np.asarray(operands[0]).sum()
        return total.block_until_ready()

    anomalies = []
    cases: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
        (ends_in_the_middle, ("and its end", "in ends_in_the_middle", "barrier_wait() reports it")),
        (colours, ("and its end", "red record", "barrier_wait() reports it")),
        (is_closed, ("_ClosedError", "is_closed (", "barrier_wait() reports it")),
        (takes_it_for_jax, ("block_until_ready", "hostcb.jax_arrays", "barrier_wait() reports it")),
    )
    one = jax.ShapeDtypeStruct(bench.operand.shape, np.float32)
    for function, words in cases:
        if callback.function == "id_tap":
            program = jax.jit(lambda x, f=function: bench.implementation.tap(f, x))
        else:
            program = jax.jit(lambda x, f=function: bench.implementation.call(f, x, one))
        error = error_of(lambda: program(bench.operand))  # noqa: B023 - called at once
        told = error_of(bench.implementation.barrier)
        if callback.function == "call":
            anomalies += _lacking(f"the error of the computation of {function.__name__}", error, words)
        anomalies += _lacking(f"the barrier after {function.__name__}", told, words[:-1])
        # What a terminal would obey is told as its escape.
        first = str(told).partition("\n")[0]
        if not first.isprintable():
            witness = f"the first line of the barrier after {function.__name__} is {first!r}"
            anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies + check_quiet_barrier(bench, "after odd failures")


@planted("jit", "call", "H1 H3")
def returns_keys(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback returns typed keys of any generator, or their words, and the program has the keys."""
    anomalies = []
    for generator in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(7, impl=generator), 3)
        turned: dict[str, Callable[[Any], Any]] = {
            "words": lambda words: words[::-1].copy(),
            "keys": lambda words, generator=generator: jax.random.wrap_key_data(words[::-1], impl=generator),  # type: ignore[misc]
        }
        for what, function in turned.items():
            program = jax.jit(lambda keys, f=function: bench.implementation.call(f, keys, keys))
            result = program(keys)
            if result.dtype != keys.dtype:
                anomalies.append(Anomaly("result", Stage.RESULT, f"{what} of {keys.dtype} came as {result.dtype}"))
            elif not np.array_equal(jax.random.key_data(result), jax.random.key_data(keys)[::-1]):
                anomalies.append(Anomaly("result", Stage.RESULT, f"the {what} of {generator} came as {result}"))
    bench.implementation.barrier()
    return anomalies


@planted("jit", "id_tap buffer_callback dlpack_callback", "H1 B1 D1")
def gives_keys_back(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap returns the typed keys of its tree, beside a leaf without a value, and buffers of keys become keys."""
    without_value = np.zeros(2, jax.dtypes.float0)

    def fill(context: Any, out: Any, words: Any) -> None:
        np.asarray(out)[...] = np.asarray(words)[::-1]

    def through(keys: Any) -> Any:
        if callback.function == "id_tap":
            return bench.implementation.tap(lambda *_: None, {"a": without_value, "b": keys})["b"]
        if callback.function == "buffer_callback":
            return library(bench).buffer_callback(fill, keys)(keys)
        return library(bench).dlpack_callback(lambda words: np.asarray(words)[::-1].copy(), keys)(keys)

    anomalies = []
    for generator in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(7, impl=generator), 3)
        wanted = jax.random.key_data(keys if callback.function == "id_tap" else keys[::-1])
        for way, run in (("outside jit", through), ("in jit", jax.jit(through))):
            result = run(keys)
            if result.dtype != keys.dtype or not np.array_equal(jax.random.key_data(result), wanted):
                witness = f"{way} the keys of {generator} came as {result}, of type {result.dtype}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies + check_quiet_barrier(bench, "after keys")


@planted("jit", "id_tap", "H1 H18")
def same_tap_of_a_key(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One function taps a number and a typed key in one program, in each order."""
    seen: list[tuple[str, tuple[int, ...]]] = []

    def host(operand: Any, transforms: Any) -> None:
        seen.append((operand.dtype.name, operand.shape))

    number, key = np.float32(1), jax.random.key(7)
    anomalies: list[Anomaly] = []
    for order in ((number, key), (key, number)):
        program = jax.jit(lambda *both: [bench.implementation.tap(host, each) for each in both])
        seen.clear()
        if (error := error_of(lambda: [each.shape for each in program(*order)])) is not None:  # noqa: B023
            anomalies.append(Anomaly("error", stage_of(error), f"a number and a key: {summary(error)}"))
        anomalies += check_quiet_barrier(bench, "after a number and a key")
        wanted = [("float32", ()) if each is number else ("uint32", (2,)) for each in order]
        if seen != wanted:
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"the tap saw {seen}, expected {wanted}"))
    return anomalies
