"""Fault cells of JAX arrays for functions: of each form of an operand, and by the setting for each function of JAX."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import OF_ARRAYS_OF_JAX, planted
from .places import flag
from .traces import library

LIKE = jax.ShapeDtypeStruct((), np.float32)


@planted("jit", f"id_tap call {OF_ARRAYS_OF_JAX}", "H1 H3 H16 X2 X3 X4", functions="jax_arrays")
def jax_arrays_in_each_form(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each leaf arrives as a JAX array: one without elements, in a container, by place and by name; in jit and not."""
    hostcb = library(bench)
    seen: list[Any] = []

    def host(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        seen.append([(isinstance(leaf, jax.Array), leaf.shape) for leaf in leaves])
        return np.float32(1)

    def through(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if callback.function == "id_tap":
            return hostcb.id_tap(lambda given, _: function(*given[0], **given[1]), (args, kwargs))
        if callback.function == "call":
            return hostcb.call(lambda given: function(*given[0], **given[1]), (args, kwargs), result_shape=LIKE)
        if callback.function == "debug.callback":
            return hostcb.debug.callback(function, *args, ordered=callback.ordered, **kwargs)
        if callback.function == "pure_callback":
            return hostcb.pure_callback(function, LIKE, *args, **kwargs)
        return hostcb.io_callback(function, LIKE, *args, ordered=callback.ordered, **kwargs)

    def forms(x: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [
            ((x[:0], x, x[0]), {}),
            (([x, {"a": x[:0], "b": (x[0],)}],), {}),
            ((), {"one": x, "other": [x[None, :0]]}),
        ]

    anomalies: list[Anomaly] = []
    operand = jnp.arange(3, dtype=np.float32)
    ways: dict[str, Callable[..., Any]] = {"the wrapper": hostcb.jax_arrays(host)}
    if callback.function not in ("id_tap", "call"):
        # The setting is for the functions that JAX has.
        ways["the setting"] = host
        ways["the setting, of a partial"] = functools.partial(host)
    wanted = [[(True, leaf.shape) for leaf in jax.tree.leaves(form)] for form in forms(operand)]
    for way, function in ways.items():

        def program(x: Any, function: Any = function) -> Any:
            return x, [through(function, *form) for form in forms(x)]

        for how, run in (("in jit", jax.jit(program)), ("outside jit", program)):
            seen.clear()
            with contextlib.nullcontext() if way == "the wrapper" else flag("hostcb_jax_arrays"):
                jax.block_until_ready(run(operand))
            anomalies += check_quiet_barrier(bench, f"after operands in each form, by {way}")
            # Those without order run in any, and pure ones may run again.
            if any(each not in seen for each in wanted) or any(each not in wanted for each in seen):
                witness = f"{how}, by {way}, whether each is a JAX array, and its shape: {seen}, expected {wanted}"
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies
