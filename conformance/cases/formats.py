"""Fault cells of formats of `debug.print` with odd names and odd values, which are checked while they are traced."""

from __future__ import annotations

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
from .harness.checks import check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library
from .values.argument_names import NAMES

LARGE = 2**70
"""No type of JAX holds it."""


class _Closed:
    """An object of the user's whose attributes cannot be read, and which can be shown."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("it is closed")

    dtype = __jax_array__ = shape

    def __repr__(self) -> str:
        return "closed"


class _Late(_Closed):
    @property
    def aval(self) -> Any:
        raise OverflowError("it is not there yet")


def _printed(run: Callable[[], Any], bench: Bench) -> str:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        jax.block_until_ready(run())
        bench.implementation.barrier()
    return written.getvalue()


@planted("jit", "debug_print debug_print_ordered", "X4", functions="barrier_wait")
def formats_of_odd_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: numbers that no type holds, objects that cannot be read, and parts of mutable arrays are printed as asked."""
    show = library(bench).debug.print
    with_part: dict[str, str] = {"{:.2f}": "1.00", "{:>6.1f}": "   1.0", "{}": "1.0"}
    values: tuple[tuple[str, tuple[Any, ...], str], ...] = (
        ("{} {}", (LARGE,), f"{LARGE} 2.5"),
        ("{:,} {}", (-LARGE,), f"{-LARGE:,} 2.5"),
        ("{0[0]} {1}", ([LARGE],), f"{LARGE} 2.5"),
        ("{} {}", (_Closed(),), "closed 2.5"),
        ("{!s:>8} {}", (_Late(),), "  closed 2.5"),
        ("{} {} {}", ("a text", None), "a text None 2.5"),
    )

    def program(x: Any) -> Any:
        ref = jax.new_ref(jnp.stack([x - 1.5, x]))
        for text, objects, _ in values:
            show(text, *objects, x, ordered=callback.ordered)
        for text in with_part:
            show(text, ref.at[0], ordered=callback.ordered)
        return ref[...]

    lines = [*(line for _, _, line in values), *with_part.values()]
    try:
        found = _printed(lambda: jax.jit(program)(np.float32(2.5)), bench).splitlines()
    except Exception as error:
        return [Anomaly("error", stage_of(error), f"the formats of odd values came to {summary(error)}")]
    # Those without order print in any.
    if (found == lines) if callback.ordered else sorted(found) == sorted(lines):
        return []
    return [Anomaly("value", Stage.CALLBACK, f"the formats of odd values gave {found}, expected {lines}")]


@planted("jit", "debug_print debug_print_ordered", "X4", functions="barrier_wait")
def fields_in_two_calls(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: in the form of two calls, fields may have any name: the options' names, and that of the format, too."""
    options = ("fmt", "ordered", "partitioned", "skip_format_check")
    show = library(bench).debug.print(ordered=callback.ordered)
    names = [*dict.fromkeys((*options, *NAMES))]
    text = " ".join(f"{{{name}}}" for name in names)

    def program(x: Any) -> Any:
        show(text, **{name: x + number for number, name in enumerate(names)})
        return x

    line = " ".join(map(str, range(len(names)))) + "\n"
    try:
        found = _printed(lambda: jax.jit(program)(np.int32(0)), bench)
    except Exception as error:
        return [Anomaly("error", stage_of(error), f"a format in two calls with fields of any name: {summary(error)}")]
    if found == line:
        return []
    return [Anomaly("value", Stage.CALLBACK, f"a format with the fields {names} gave {found!r}, expected {line!r}")]


@planted("pjit", "debug_print_ordered debug_callback_ordered", "H5 X4", minimum_devices=2, functions="barrier_wait")
def parts_in_order(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: parts of a mesh have no order, which is refused under jit over a mesh; on one device they keep it."""
    hostcb = library(bench)

    def through(x: Any, partitioned: Any = True) -> Any:
        if callback.function == "debug.print":
            hostcb.debug.print("part", ordered=True, partitioned=partitioned)
            hostcb.debug.print("part {}", x, ordered=True, partitioned=partitioned)
        else:
            hostcb.debug.callback(lambda operand: print("part", operand), x, ordered=True, partitioned=partitioned)
        return x

    def in_order(x: Any) -> Any:
        for number in range(3):
            x = hostcb.id_tap(lambda operand, _: print(f"tap {operand}"), x + number)
            x = through(x)
            x = hostcb.call(lambda operand: (print("call"), operand)[1], x, result_shape=x)
        return x

    anomalies: list[Anomaly] = []
    parts = jax.device_put(np.arange(len(bench.devices), dtype=np.int32), bench.split)
    error = error_of(lambda: jax.block_until_ready(jax.jit(through)(parts)))
    if not isinstance(error, NotImplementedError) or "partitioned" not in str(error):
        said = "nothing" if error is None else summary(error)
        anomalies.append(Anomaly("not refused", Stage.TRACE, f"parts in order over a mesh came to {said}"))
    error_of(bench.implementation.barrier)
    found = _printed(lambda: jax.jit(in_order)(np.int32(1)), bench).splitlines()
    before = ["part"] if callback.function == "debug.print" else []
    wanted: list[str] = []
    for number in (1, 2, 4):
        wanted += [f"tap {number}", *before, f"part {number}", "call"]
    if found != wanted:
        anomalies.append(Anomaly("order", Stage.CALLBACK, f"on one device they printed {found}, expected {wanted}"))
    return anomalies + check_quiet_barrier(bench, "after parts in order")
