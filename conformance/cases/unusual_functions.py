"""Fault cells of functions that few users write: false ones, ones with arguments of any name, ones in another order."""

from __future__ import annotations

import collections
import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import EVERY_KIND, WITH_RESULTS, planted
from .traces import library

NAMES = (
    *("self", "cls", "other", "fun", "spec", "tree", "values", "format", "printer", "operands", "sharding_", "kind"),
    *("function", "callback", "callback_func", "tap_func", "fn", "fmt", "host", "out", "context", "result", "arg"),
    *("args", "kwargs", "device", "index", "transforms", "primitive", "params", "name", "dtype", "shape", "x"),
)
"""Names that a library may have for its own arguments, and a user for others."""


class _Recorder(list[Any]):
    """A function of a callback that keeps its operands, and is false as long as it has none."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __call__(self, *arguments: Any) -> Any:
        operand = np.asarray(arguments[0 if self.function == "id_tap" else -1]).copy()
        self.append(operand)
        if self.function != "buffer_callback":
            return operand + np.float32(1)
        np.asarray(arguments[1])[...] = operand + np.float32(1)
        return None


def _through(bench: Bench, callback: Callback, function: Any) -> Callable[[Any], Any]:
    """A function of the operand that calls back to this very object; a suite's own function would stand for it."""
    hostcb = library(bench)
    like = jax.ShapeDtypeStruct(bench.operand.shape, bench.operand.dtype)
    ways: dict[str, Callable[[Any], Any]] = {
        "id_tap": lambda x: hostcb.id_tap(function, x),
        "call": lambda x: hostcb.call(function, x, result_shape=like),
        "pure_callback": lambda x: hostcb.pure_callback(function, like, x),
        "io_callback": lambda x: hostcb.io_callback(function, like, x, ordered=callback.ordered),
        "debug.callback": lambda x: (hostcb.debug.callback(function, x), x)[1],
        "buffer_callback": lambda x: hostcb.buffer_callback(function, like)(x),
        "dlpack_callback": lambda x: hostcb.dlpack_callback(function, like)(x),
    }
    return ways[callback.function]


@planted("jit", EVERY_KIND, "H1 H3 X2 X3 X4 B1 D1", functions="barrier_wait")
def false_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callable object that is false, as an empty list is, is a function all the same, in jit and outside of it."""
    anomalies: list[Anomaly] = []
    wanted = bench.expected(callback, bench.operand)
    for how in ("in jit", "outside jit"):
        recorder = _Recorder(callback.function)
        through = _through(bench, callback, recorder)
        program = jax.jit(through) if how == "in jit" else through
        anomalies += check_value(how, lambda program=program: program(jnp.asarray(bench.operand)), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, how)
        if [each.tolist() for each in recorder] != [bench.operand.tolist()]:
            anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{how} the function saw {list(recorder)}"))
    return anomalies


class _OwnEquality:
    """A callable that adds its number, with an equality or a hash that raises, or that gives no truth value."""

    def __init__(self, number: int, function: str) -> None:
        self.number = np.float32(number)
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        result = np.asarray(arguments[0 if self.function == "id_tap" else -1]) + self.number
        if self.function != "buffer_callback":
            return result
        np.asarray(arguments[1])[...] = result
        return None


class _NotHashed(_OwnEquality):
    def __hash__(self) -> int:
        raise NotImplementedError("a model has no hash")


class _OfArrays(_OwnEquality):
    def __eq__(self, other: object) -> Any:
        return np.array([1, self.number]) == np.array([1, getattr(other, "number", 0)])

    def __hash__(self) -> int:
        return 1


class _NotCompared(_OwnEquality):
    def __eq__(self, other: object) -> Any:
        raise NotImplementedError("a model is not compared")

    def __hash__(self) -> int:
        return 1


class _Neither(_NotCompared):
    def __hash__(self) -> int:
        raise RuntimeError("a model is not hashed")


@planted("jit", EVERY_KIND, "H1 H3 H18 X2 X3 X4 B1 D1", functions="barrier_wait")
def functions_with_own_equality(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Callables whose hash or equality raises, or compares arrays, are functions: each is called for itself."""
    anomalies: list[Anomaly] = []
    callables = [
        kind(number, callback.function) for kind in (_NotHashed, _OfArrays, _NotCompared, _Neither) for number in (1, 2)
    ]
    programs = [_through(bench, callback, each) for each in callables]

    def program(x: Any) -> Any:
        return [through(x) for through in programs]

    for how, run in (("in jit", jax.jit(program)), ("outside jit", program)):
        for each in callables:
            each.calls = 0
        try:
            results = [np.asarray(each) for each in run(jnp.asarray(bench.operand))]
            bench.implementation.barrier()
        except Exception as error:
            error_of(bench.implementation.barrier)
            anomalies.append(Anomaly("error", stage_of(error), f"callables {how}: {summary(error)}"))
            continue
        for one, result in zip(callables, results, strict=True):
            wanted = bench.operand + one.number if callback.returns_new_value else bench.operand
            if not one.calls or not np.array_equal(result, wanted):
                witness = f"{type(one).__name__} number {one.number} {how} gave {result} in {one.calls} calls"
                anomalies.append(Anomaly("result", Stage.RESULT, f"{witness}, expected {wanted}"))
    return anomalies


@planted("jit", "pure_callback io_callback debug_callback buffer_callback dlpack_callback", "X2 X3 X4 B1 D1")
def arguments_of_any_name(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A user's keyword arguments may have any name that is no option's, also that of an argument of the library's."""
    namespace = library(bench)
    seen: list[dict[str, float]] = []

    def host(*operands: Any, **named: Any) -> Any:
        seen.append({name: float(np.asarray(each)) for name, each in named.items()})
        return np.float32(1)

    def fill(context: Any, out: Any, /, **named: Any) -> None:
        np.asarray(out)[...] = host(**named)

    one = jax.ShapeDtypeStruct((), np.float32)
    ways: dict[str, Callable[..., Any]] = {
        "pure_callback": lambda **named: namespace.pure_callback(host, one, **named),
        "io_callback": lambda **named: namespace.io_callback(host, one, **named),
        "debug.callback": lambda **named: (namespace.debug.callback(host, **named), np.float32(1))[1],
        "buffer_callback": lambda **named: namespace.buffer_callback(fill, one)(**named),
        "dlpack_callback": lambda **named: namespace.dlpack_callback(host, one)(**named),
    }
    through = ways[callback.function]
    anomalies: list[Anomaly] = []
    own = {"callback"} if callback.function in ("pure_callback", "io_callback", "debug.callback") else set()
    for name in NAMES:
        if name in own:
            continue
        seen.clear()
        try:
            result = float(jax.jit(lambda x, name=name: through(**{name: x}))(np.float32(2)))
            bench.implementation.barrier()
        except Exception as error:
            anomalies.append(Anomaly("error", stage_of(error), f"an argument {name!r}: {summary(error)}"))
            continue
        if (result, seen) != (1.0, [{name: 2.0}]):
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"an argument {name!r} gave {result}, {seen}"))
    return anomalies


@planted("jit", "debug_print", "X4")
def fields_of_any_name(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The fields of a format may have any name that is no option's."""
    anomalies: list[Anomaly] = []
    for name in NAMES:
        if name == "fmt":
            # The format itself, by JAX's own name.
            continue
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            try:
                jax.jit(lambda x, name=name: bench.implementation.print_as(f"{{{name}}}", **{name: x}))(np.float32(2))
                bench.implementation.barrier()
            except Exception as error:
                anomalies.append(Anomaly("error", stage_of(error), f"a field {name!r}: {summary(error)}"))
                continue
        if written.getvalue() != "2.0\n":
            anomalies.append(Anomaly("value", Stage.CALLBACK, f"a field {name!r} gave {written.getvalue()!r}"))
    return anomalies


@planted("jit", WITH_RESULTS, "H3 X2 X3", functions="barrier_wait")
def dicts_in_any_order(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results in a dict go to their own names, whatever the order; in a dict with an order that one must be right."""
    ordered = collections.OrderedDict
    anomalies: list[Anomaly] = []
    like = jax.ShapeDtypeStruct((), np.float32)
    sorted_names, others = ("aux", "loss"), ("loss", "aux")
    values = {"loss": np.float32(1), "aux": np.float32(10)}
    for wanted, returned, names, right in (
        (dict, dict, others, True),
        (dict, dict, sorted_names, True),
        (ordered, ordered, others, True),
        (ordered, ordered, sorted_names, False),
        (dict, ordered, sorted_names, None),
        (dict, ordered, others, None),
    ):
        likes = wanted((name, like) for name in others)

        def host(_: Any, returned: Any = returned, names: Any = names) -> Any:
            return returned((name, values[name]) for name in names)

        what = f"{returned.__name__} of {names} for {wanted.__name__} of {others}"
        program = jax.jit(lambda x, host=host, likes=likes: bench.apply(callback, host, x, likes))
        try:
            given = {name: float(each) for name, each in program(np.float32(0)).items()}
        except Exception as error:
            error_of(bench.implementation.barrier)
            if right:
                anomalies.append(Anomaly("error", stage_of(error), f"{what}: {summary(error)}"))
        else:
            if right is False or given != {"loss": 1.0, "aux": 10.0}:
                anomalies.append(Anomaly("result", Stage.RESULT, f"{what}: it was accepted as {given}"))
    return anomalies + _of_other_keys(bench, callback)


def _of_other_keys(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Keys of another type are other keys, also where they have the same words, as those of JSON have."""
    like = jax.ShapeDtypeStruct((), np.float32)
    anomalies: list[Anomaly] = []
    for count in (1, 2, 11):
        numbers = [*range(count)]
        for names, others in ((numbers, [*map(str, numbers)]), ([*map(str, numbers)], numbers)):
            likes, returned = dict.fromkeys(names, like), dict.fromkeys(others, np.float32(1))
            program = jax.jit(lambda x, r=returned, likes=likes: bench.apply(callback, lambda _: r, x, likes))
            error = error_of(lambda program=program: jax.block_until_ready([*program(np.float32(0)).values()]))  # type: ignore[misc]
            error_of(bench.implementation.barrier)
            if error is None:
                witness = f"a dict with the keys {others} was accepted for one with {names}"
                anomalies.append(Anomaly("not refused", Stage.RESULT, witness))
    return anomalies


@planted("jit", "call_print_and_tap", "X4", functions="barrier_wait")
def empty_format(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: a format without characters prints an empty line, in its place among other prints."""
    show = library(bench).debug.print
    written = io.StringIO()

    def program(x: Any) -> Any:
        show("a {}", x, ordered=True)
        show("", ordered=True)
        show("b {}", x, ordered=True)
        return x

    with contextlib.redirect_stdout(written):
        jax.block_until_ready(jax.jit(program)(np.float32(1)))
        bench.implementation.barrier()
    if written.getvalue() == "a 1.0\n\nb 1.0\n":
        return []
    return [
        Anomaly("value", Stage.CALLBACK, f"three prints, of which the second is empty, gave {written.getvalue()!r}")
    ]


@planted("jit", "id_tap call", "H1 H3", functions="barrier_wait")
def wraps_itself(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function that says it wraps itself, or another that wraps it again, is called as any other one."""
    seen: list[float] = []

    def note(operand: Any, transforms: Any = None) -> Any:
        seen.append(float(np.sum(operand)))
        return np.asarray(operand) + np.float32(1)

    def other(operand: Any, transforms: Any = None) -> Any:
        return note(operand)

    note.__wrapped__ = note  # type: ignore[attr-defined]
    anomalies = _calls(bench, callback, note)
    note.__wrapped__, other.__wrapped__ = other, note  # type: ignore[attr-defined]
    anomalies += _calls(bench, callback, other)
    if seen != [float(np.sum(bench.operand))] * 2:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"two functions that wrap themselves saw {seen}"))
    return anomalies


def _calls(bench: Bench, callback: Callback, function: Any) -> list[Anomaly]:
    program = jax.jit(_through(bench, callback, function))
    wanted = bench.expected(callback, bench.operand)
    anomalies = check_value("a function that wraps itself", lambda: program(bench.operand), wanted)
    return anomalies + check_quiet_barrier(bench, "after a function that wraps itself")


class _OfManyLines:
    def __repr__(self) -> str:
        return "Model(\n    layers=3,\n)"

    def __call__(self, *arguments: Any) -> Any:
        raise ValueError(PLANTED)


@planted("jit", EVERY_KIND, "H32", functions="barrier_wait")
def shown_in_many_lines(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: the line of a failure is one line, though the function is shown in three."""
    program = jax.jit(_through(bench, callback, _OfManyLines()))
    error_of(lambda: jax.block_until_ready(program(bench.operand)))
    failures: Any = getattr(error_of(bench.implementation.barrier), "failures", ())
    lines = [str(failure.headline) for failure in failures]
    if len(lines) != 1 or len(lines[0].splitlines()) != 1 or f"raised ValueError: {PLANTED}" not in lines[0]:
        return [Anomaly("poor error", Stage.BARRIER, f"the barrier must tell of one failure in one line: {lines}")]
    return []
