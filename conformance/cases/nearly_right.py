"""Fault cells of arguments that are nearly right: halves of numbers, texts of them, shapes without values.

Each is refused with words, both while a program is traced and outside jit, and no callback runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.registry import planted
from .refusals import ONE, Described, Ways, nothing, refusals
from .traces import library

WITHOUT_VALUES = np.zeros(3, jax.dtypes.float0)
FEW_BITS = jax.ShapeDtypeStruct((3,), jnp.int4)

Cases = dict[str, tuple[Callable[[Any], Any], type[Exception], str]]
"""Programs, the type of the error of each, and a word of its text."""


class _Unshown:
    """No value of JAX's, and its own words cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("it is closed")


def _not_refused(bench: Bench, cases: Cases) -> list[Anomaly]:
    ways: Ways = {"while traced": jax.make_jaxpr, "outside jit": lambda program: program}
    return refusals(bench, {what: (program, (kind, word)) for what, (program, kind, word) in cases.items()}, ways)


@planted("jit", "id_tap call", "H1 H3 H10", functions="barrier_wait")
def numbers_that_are_nearly_devices(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A device's number is an integer, and neither a half nor a text of one; and a value is one of JAX's."""
    hostcb = library(bench)

    def through(operand: Any, **options: Any) -> Any:
        if callback.function == "id_tap":
            return hostcb.id_tap(nothing, operand, **options)
        return hostcb.call(nothing, operand, **options)

    words = "device_index must be an integer"
    cases: Cases = {
        f"a device {index!r}": (lambda x, index=index: through(x, device_index=index), TypeError, words)  # type: ignore[misc]
        for index in (0.5, 0.0, "0", None)
    }
    cases["an object that cannot be shown"] = (lambda x: through((x, _Unshown())), TypeError, callback.function)
    return _not_refused(bench, cases)


@planted(
    "jit", "call pure_callback io_callback buffer_callback dlpack_callback", "H3 X2 X3 B1 D2", functions="barrier_wait"
)
def shapes_that_are_nearly_right(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result's shape has whole sizes, a type with values, and both of its attributes; a sharding has one device."""
    hostcb = library(bench)
    through: Callable[..., Any] = {
        "call": lambda x, wanted: hostcb.call(nothing, x, result_shape=wanted),
        "pure_callback": lambda x, wanted, **options: hostcb.pure_callback(nothing, wanted, x, **options),
        "io_callback": lambda x, wanted, **options: hostcb.io_callback(nothing, wanted, x, **options),
        "buffer_callback": lambda x, wanted: hostcb.buffer_callback(nothing, wanted)(x),
        "dlpack_callback": lambda x, wanted: hostcb.dlpack_callback(nothing, wanted)(x),
    }[callback.function]
    shapes: dict[str, Any] = {
        "half an element": Described((2.5,), np.float32),
        "a whole number as a fraction": Described((2.0,), np.float32),
        "a text as a size": Described(("2",), np.float32),
        "an array without values": WITHOUT_VALUES,
        "a shape without values": jax.ShapeDtypeStruct((3,), jax.dtypes.float0),
        "a shape without values after one with": (ONE, jax.ShapeDtypeStruct((3,), jax.dtypes.float0)),
    }
    if callback.function != "call":
        # A call takes a number as an example.
        shapes |= {"a number": 0.0, "a truth value after a shape": {"a": ONE, "b": True}, "a whole number": [3]}
    cases: Cases = {
        what: (lambda x, wanted=wanted: through(x, wanted), ValueError, "does not describe a result")  # type: ignore[misc]
        for what, wanted in shapes.items()
    }
    if callback.function in ("pure_callback", "io_callback") and len(bench.devices) > 1:
        for what, sharding in (("one value", NamedSharding(bench.mesh, PartitionSpec())), ("parts", bench.split)):
            cases[f"a sharding of {what} on several devices"] = (
                lambda x, sharding=sharding: through(x, ONE, sharding=sharding),  # type: ignore[misc]
                NotImplementedError,
                "SingleDeviceSharding",
            )
    return _not_refused(bench, cases)


@planted("jit", "buffer_callback dlpack_callback", "B2 B3 B4", functions="barrier_wait")
def buffers_that_are_nearly_right(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Types of less than a byte in a later place, a method that there is not, and aliases by what is no integer."""
    make = getattr(library(bench), callback.function)

    def made(x: Any, wanted: Any = ONE, **options: Any) -> Any:
        return make(nothing, wanted, **options)(x)

    def in_lanes(x: Any) -> Any:
        return jax.vmap(lambda row: made(row, vmap_method="vectorized"))(jnp.stack([x, x]))

    cases: Cases = {
        "an unknown method": (lambda x: made(x, vmap_method="vectorized"), ValueError, "vmap_method"),
        "an unknown method in lanes": (in_lanes, ValueError, "vmap_method"),
        "an int4 by name": (lambda x: make(nothing, ONE)(x, last=x.astype(jnp.int4)), TypeError, "int4"),
    }
    for number, wanted in enumerate(((FEW_BITS, ONE), (ONE, FEW_BITS), {"a": ONE, "b": [ONE, FEW_BITS]})):
        program = lambda x, wanted=wanted: made(x, wanted)
        cases[f"an int4 among results, number {number}"] = (program, TypeError, "int4")
    all_aliases: tuple[dict[Any, Any], ...] = ({0.5: 0}, {0.0: 0}, {"0": 0}, {0: 0.5}, {0: "0"}, {0: None})
    for aliases in all_aliases:
        program = lambda x, aliases=aliases: made(x, input_output_aliases=aliases)
        cases[f"the aliases {aliases}"] = (program, TypeError, "input_output_aliases")
    return _not_refused(bench, cases)
