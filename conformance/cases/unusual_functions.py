"""Fault cells of functions that few users write: false ones, ones with arguments of any name, ones in another order."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.registry import planted
from .traces import library

NAMES = (
    *("self", "cls", "other", "fun", "spec", "tree", "values", "format", "printer", "operands", "sharding_", "kind"),
    *("function", "callback", "callback_func", "tap_func", "fn", "fmt", "host", "out", "context", "result", "arg"),
    *("args", "kwargs", "device", "index", "transforms", "primitive", "params", "name", "dtype", "shape", "x"),
)
"""Names that a library may have for its own arguments, and a user for others."""


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
