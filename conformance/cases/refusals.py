"""Fault cells of wrong arguments: each is refused while the program is traced, with words, and no callback runs."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import shard_map
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted
from .traces import library

Refused = tuple[type[Exception] | tuple[type[Exception], ...], str]
"""The type of the error, and a word of its text."""

Cases = dict[str, tuple[Callable[[Any], Any], Refused]]
Ways = dict[str, Callable[..., Any]]

IN_JIT: Ways = {"in jit": jax.jit}

ONE = jax.ShapeDtypeStruct((3,), np.float32)


def nothing(*args: Any, **kwargs: Any) -> None:
    """A function that must not be called."""
    raise AssertionError("a callback ran, and its program should have been refused")


async def later(*args: Any) -> None:
    """No function of a callback: it returns a coroutine."""


async def generated_later(*args: Any) -> Any:
    """No function of a callback: it returns an asynchronous generator."""
    yield args


class Described:
    """What describes a result by two attributes, as an object of another library does."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)


class _Later:
    async def write(self, *args: Any) -> None:
        """No function of a callback either."""


class _CalledLater:
    async def __call__(self, *args: Any) -> None:
        """Nor this one."""


WRAPPED: dict[str, Callable[..., Any]] = {
    "function, wrapped": functools.partial(later),
    "function, wrapped twice": functools.partial(functools.partial(later, 1), 2),
    "method, wrapped": functools.partial(_Later().write),
    "method, wrapped twice": functools.partial(functools.partial(_Later().write, 1)),
    "function, bound and wrapped": functools.partial(types.MethodType(later, 1)),
    "function, wrapped and bound": types.MethodType(functools.partial(later), 1),
    "object": _CalledLater(),
    "object, wrapped": functools.partial(_CalledLater()),
}


def generated(*args: Any) -> Any:
    """No function of a callback: it returns a generator."""
    yield args


def refusals(bench: Bench, cases: Cases, ways: Ways = IN_JIT) -> list[Anomaly]:
    """Check that each program is refused in each way, with an error of its type and a word of its text."""
    anomalies = []
    for what, (program, (kinds, word)) in cases.items():
        for how, way in ways.items():
            try:
                jax.block_until_ready(way(program)(jnp.arange(3, dtype=np.float32)))
            except Exception as error:
                if not isinstance(error, kinds) or word not in str(error):
                    witness = f"{what} must be refused {how} with {kinds} and {word!r}, came {summary(error)}"
                    anomalies.append(Anomaly("wrong refusal", Stage.TRACE, witness))
            else:
                anomalies.append(Anomaly("not refused", Stage.TRACE, f"{what} was not refused {how}"))
    return anomalies + check_quiet_barrier(bench, "after what was refused")


@planted("jit", "id_tap", "H1")
def wrong_arguments(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What is no function, no value, no device and no flag of a tap."""
    tap, count = bench.implementation.tap, len(bench.devices)
    direct = library(bench).id_tap
    return refusals(
        bench,
        {
            "a number in place of the function": (lambda x: tap(3, x), (TypeError, "tap_func")),
            "a coroutine function": (lambda x: tap(later, x), (TypeError, "coroutine")),
            "a coroutine method": (lambda x: tap(_Later().write, x), (TypeError, "coroutine")),
            "a generator function": (lambda x: tap(generated, x), (TypeError, "generator")),
            "an asynchronous generator function": (lambda x: tap(generated_later, x), (TypeError, "generator")),
            **{
                f"a coroutine {how}": (functools.partial(tap, function), (TypeError, "coroutine"))
                for how, function in WRAPPED.items()
            },
            "a text in place of a value": (lambda x: tap(nothing, (x, "text")), (TypeError, "")),
            "a device that is not there": (
                lambda x: direct(nothing, x, device_index=count),
                ((ValueError, IndexError), ""),
            ),
            "a device that is not there, on a mesh": (
                shard_map(
                    lambda x: direct(nothing, x, device_index=count),
                    mesh=bench.mesh,
                    in_specs=PartitionSpec(),
                    out_specs=PartitionSpec(),
                ),
                ((ValueError, IndexError), "device_index"),
            ),
            "a negative device": (lambda x: direct(nothing, x, device_index=-1), ((ValueError, IndexError), "")),
            "a text in place of a device": (
                lambda x: direct(nothing, x, device_index="0"),
                (TypeError, "device_index must be an integer"),
            ),
            "an argument that there is not": (lambda x: direct(nothing, x, devices=0), (TypeError, "devices")),
            "an integer that no type holds": (lambda x: tap(nothing, (x, 2**70)), (OverflowError, str(2**70))),
            "the function of a reduction": (
                lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: tap(nothing, a + b), (0,)),
                (NotImplementedError, "reduce"),
            ),
            "a stream that cannot be written to": (
                lambda x: library(bench).id_print(x, output_stream=3),
                (TypeError, "write"),
            ),
        },
    )


@planted("jit", "call", "H3")
def wrong_arguments_of_a_call(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What is no function, no shape and no method of a call, and no function of JAX's two and of `jax_arrays`."""
    hostcb = library(bench)
    call = hostcb.call
    pure, io, arrays = hostcb.pure_callback, hostcb.io_callback, hostcb.jax_arrays

    def looped(x: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, y: call(nothing, y * x, result_shape=y), x).sum()

    return refusals(
        bench,
        {
            "a number in place of the function": (lambda x: call(3, x, result_shape=x), (TypeError, "callback_func")),
            "a coroutine function": (lambda x: call(later, x, result_shape=x), (TypeError, "coroutine")),
            "a text in place of a shape": (
                lambda x: call(nothing, x, result_shape="text"),
                ((TypeError, ValueError), ""),
            ),
            "a type that JAX lacks": (
                lambda x: call(nothing, x, result_shape=np.zeros(2, "U1")),
                ((TypeError, ValueError), ""),
            ),
            "a type that no device has": (
                lambda x: call(nothing, x, result_shape=np.zeros(2, np.longdouble)),
                (ValueError, "does not describe a result"),
            ),
            "a size below zero": (
                lambda x: call(nothing, x, result_shape=jax.ShapeDtypeStruct((-1,), np.float32)),
                (ValueError, "does not describe a result"),
            ),
            "a number in place of a pure function": (lambda x: pure(3, ONE, x), (TypeError, "callable")),
            "an array of a type that is off in place of a shape": (
                lambda x: pure(nothing, np.zeros(3), x),
                (ValueError, "float64"),
            ),
            "a generator function": (lambda x: pure(generated, ONE, x), (TypeError, "generator")),
            "a coroutine function of io_callback": (lambda x: io(later, ONE, x), (TypeError, "coroutine")),
            "a coroutine function of debug.callback": (
                lambda x: hostcb.debug.callback(later, x),
                (TypeError, "coroutine"),
            ),
            "a derivative": (
                lambda x: jax.grad(lambda y: call(nothing, y, result_shape=y).sum())(x),
                (NotImplementedError, "derivative"),
            ),
            "a derivative of a loop": (lambda x: jax.grad(looped)(x), (NotImplementedError, "derivative")),
            "the pure function of a reduction": (
                lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: pure(nothing, a, a, b), (0,)),
                (NotImplementedError, "reduce"),
            ),
            "a number in place of a function of arrays": (
                lambda x: call(arrays(3), x, result_shape=x),
                (TypeError, "jax_arrays"),
            ),
            "a text in place of a sharding": (
                lambda x: pure(nothing, ONE, x, sharding="cpu"),
                (TypeError, "SingleDeviceSharding"),
            ),
            "a described type that is off in place of a shape": (
                lambda x: call(nothing, x, result_shape=Described((3,), "float64")),
                (ValueError, "float64"),
            ),
            "a described type that is off, of a pure function": (
                lambda x: pure(nothing, Described((3,), "int64"), x),
                (ValueError, "int64"),
            ),
            "a coroutine function of arrays": (
                lambda x: call(arrays(later), x, result_shape=x),
                (TypeError, "coroutine"),
            ),
            "an order by NumPy's truth, in a batch": (
                lambda x: jax.vmap(lambda y: io(nothing, None, y, ordered=np.bool_(True)))(x),
                (ValueError, "ordered"),
            ),
            "an order by a number, in a batch": (
                lambda x: jax.vmap(lambda y: io(nothing, None, y, ordered=1))(x),
                (ValueError, "ordered"),
            ),
            "a sharding of several devices": (
                lambda x: io(nothing, ONE, x, sharding=bench.split),
                (NotImplementedError, "SingleDeviceSharding"),
            ),
            "an unknown method of a pure function": (
                lambda x: pure(nothing, ONE, x, vmap_method="any"),
                (ValueError, "vmap_method"),
            ),
            "an unknown method": (
                lambda x: jax.vmap(lambda y: call(nothing, y, result_shape=y, vmap_method="any"))(x),
                (ValueError, "vmap_method"),
            ),
        },
    )


@planted("jit", "pure_callback", isolated=True)
def functions_of_reductions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """XLA applies such a function in parts. It calls back there, or the program is refused, and the process lives."""
    number = jax.ShapeDtypeStruct((), np.float32)

    def add(one: Any, other: Any) -> Any:
        return bench.invoke(callback, lambda pair: np.float32(pair[0] + pair[1]), (one, other), number)

    def double(one: Any) -> Any:
        return bench.invoke(callback, lambda operand: np.float32(2 * operand), one, number)

    zero, second = np.float32(0), jnp.array([[1]])
    numbers = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
    programs: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
        "reduce_window": (lambda x: jax.lax.reduce_window(x, zero, add, (2,), (1,), "VALID"), [1.0, 3.0]),
        "reduce": (lambda x: jax.lax.reduce(x, zero, add, (0,))[None], [3.0]),
        "scatter_apply": (lambda x: jax.lax.scatter_apply(x, second, double, numbers, update_shape=(1,)), [0, 2, 2]),
    }
    anomalies = []
    for name, (program, wanted) in programs.items():
        try:
            result = np.asarray(jax.jit(program)(np.arange(3, dtype=np.float32))).tolist()
        except NotImplementedError:
            continue
        except Exception as error:
            anomalies.append(Anomaly("wrong refusal", Stage.TRACE, f"in {name} it came to {summary(error)}"))
            continue
        if result != wanted:
            anomalies.append(Anomaly("result", Stage.RESULT, f"{name} gave {result}, expected {wanted}"))
    return anomalies + check_quiet_barrier(bench, "after functions of reductions")


@planted("jit", "call_print_and_tap", "X4")
def wrong_formats(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: a format of `debug.print` with arguments that are missing or left over, or that is malformed."""
    show = library(bench).debug.print
    cases: dict[str, tuple[Callable[[Any], Any], Refused]] = {
        "a missing argument": (lambda x: show("{} {}", x), ((ValueError, IndexError, KeyError, TypeError), "")),
        "a missing name": (lambda x: show("{x} {y}", x=x), ((ValueError, IndexError, KeyError, TypeError), "")),
        "an argument that is left over": (lambda x: show("{}", x, x), ((ValueError, TypeError), "")),
        "a name that is left over": (lambda x: show("{x}", x=x, y=x), ((ValueError, TypeError), "")),
        "a name that is left over, beside an argument": (lambda x: show("{}", x, y=x), ((ValueError, TypeError), "y")),
        "a brace alone": (lambda x: show("{", x), (ValueError, "")),
        "a specification that does not fit": (lambda x: show("{:s}", x), ((ValueError, TypeError), "")),
        # It would be formatted as its words.
        "a specification that does not fit a key": (
            lambda x: show("{:d}", jax.random.key(0)),
            ((ValueError, TypeError), ""),
        ),
        "a number in place of a format": (lambda x: show(3, x), (TypeError, "string")),
        "a missing argument, without arguments": (lambda x: show("x is {}"), (IndexError, "")),
        "a missing name, without arguments": (lambda x: show("x is {x}"), (KeyError, "")),
        "a brace alone, without arguments": (lambda x: show("x is {"), (ValueError, "")),
        "a number in place of a format, without arguments": (lambda x: show(3), (TypeError, "string")),
        "an attribute that the value lacks": (lambda x: show("{x.lenght}", x=x), (ValueError, "lenght")),
        "an item that the value lacks": (lambda x: show("{x[a]}", x={"b": x}), ((ValueError, LookupError), "a")),
        # The form `debug.print(ordered=True)("{}", x)`: a name belongs to the second call.
        "a name in the first of two calls": (lambda x: show(x=x)("{x}"), (TypeError, "two-call")),
        "a name in the first of two calls of debug.callback": (
            lambda x: library(bench).debug.callback(x=x)(nothing),
            (TypeError, "two-call"),
        ),
    }
    return refusals(bench, cases)


@planted("jit", "id_tap", "H16")
def wrong_settings(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: a size and an interval that are none, and words that are no truth values, leave the setting as it was."""
    anomalies = []
    bad: dict[str, tuple[Any, ...]] = {
        "jax_host_callback_max_queue_byte_size": (-1, "many", 1.5),
        "jax_host_callback_inline": ("maybe", 2),
        "hostcb_switch_interval": (-1.0, 1e-9, float("inf"), float("nan"), "nan", "soon"),
    }
    for name, values in bad.items():
        for value in values:
            try:
                jax.config.update(name, value)
            except ValueError as error:
                if name.upper() not in str(error).upper():
                    witness = f"{name}={value!r} is refused without the name: {summary(error)}"
                    anomalies.append(Anomaly("poor error", Stage.TRACE, witness))
            else:
                jax.config.update(name, None)
                anomalies.append(Anomaly("not refused", Stage.TRACE, f"{name}={value!r} was accepted"))
    good: dict[str, tuple[Any, ...]] = {
        "jax_host_callback_max_queue_byte_size": ("256e6", "256000000", 256e6, 0),
        "jax_host_callback_inline": ("off", "0"),
    }
    for name, values in good.items():
        for value in values:
            try:
                jax.config.update(name, value)
            except ValueError as error:
                anomalies.append(Anomaly("error", Stage.TRACE, f"{name}={value!r} is refused: {summary(error)}"))
            jax.config.update(name, None)
    return anomalies
