"""Fault cells of operands with leaves of several kinds: without tangents, without values, and mutable ones."""

from __future__ import annotations

import warnings
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
from .harness.checks import error_of
from .harness.prints import format_for
from .harness.registry import EVERY_KIND, WITH_SIDE_EFFECT, planted
from .places import flag
from .traces import library

WITHOUT_VALUE = np.zeros(2, jax.dtypes.float0)
FLOAT0 = ("float0", 1)
FLOAT0_OF_TWO = ("float0", 2)
EMPTY = {"b": FLOAT0_OF_TWO, "c": ("float0", 3), "d": FLOAT0}
"""Of each leaf that has no tangent: that, and its number of elements."""


def _shown(leaf: Any) -> tuple[str, Any]:
    array = np.asarray(leaf)
    return ("float0", array.size) if array.dtype == jax.dtypes.float0 else (array.dtype.name, array.tolist())


@planted("jit", "id_tap", "H16")
def derivatives_of_mixed_leaves(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H16: the tangents of a tree have its form; of integers and of leaves without a value they are float0 arrays."""
    seen: list[tuple[Any, list[str]]] = []
    returned: list[tuple[Any, bool]] = []

    def note(value: Any, transforms: Any) -> None:
        seen.append((jax.tree.map(_shown, value), [name for name, _ in transforms]))

    def cubed(x: Any) -> Any:
        # Each leaf without a tangent has another size: one in the place of another would show.
        tree = {"a": x * x, "b": WITHOUT_VALUE, "c": jnp.full(3, 7), "d": jnp.int32(4), "e": jnp.bfloat16(2.5)}
        tree["f"] = jnp.array([1 + 2j, 3j], jnp.complex64)
        tapped = bench.implementation.tap(note, tree)
        returned.append((np.shape(tapped["b"]), tapped["b"].dtype == WITHOUT_VALUE.dtype))
        return tapped["a"] * x

    with warnings.catch_warnings(), flag("jax_host_callback_ad_transforms"):
        warnings.simplefilter("ignore")
        for program in (lambda x: jax.jvp(cubed, (x,), (1.0,)), jax.grad(cubed)):
            jax.block_until_ready(jax.jit(program)(3.0))
            bench.implementation.barrier()
    values = {
        "a": ("float32", 9.0),
        "b": FLOAT0_OF_TWO,
        "c": ("int32", [7, 7, 7]),
        "d": ("int32", 4),
        "e": ("bfloat16", 2.5),
        "f": ("complex64", [1 + 2j, 3j]),
    }
    tangents = {**EMPTY, "a": ("float32", 6.0), "e": ("bfloat16", 0.0), "f": ("complex64", [0j, 0j])}
    cotangents = {**EMPTY, "a": ("float32", 3.0), "e": ("bfloat16", 0.0), "f": ("complex64", [0j, 0j])}
    wanted = [((values, tangents), ["jvp"]), (values, []), (cotangents, ["jvp", "transpose"])]
    if {*returned} != {(WITHOUT_VALUE.shape, True)}:
        witness = f"shapes of a leaf without a value that came back, and whether its type did: {returned}"
        return [Anomaly("result", Stage.TRACE, witness)]
    if seen == wanted:
        return []
    return [Anomaly("wrong callback", Stage.CALLBACK, f"the tap was given and told {seen}, expected {wanted}")]


@planted("jit", "id_tap", "H6 H7")
def cotangents_of_mixed_leaves(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap of tangents beside integers and a leaf without a value, in a `custom_jvp` rule, alone and in lanes."""
    seen: list[tuple[Any, Any]] = []

    def note(value: Any, transforms: Any) -> None:
        seen.append((jax.tree.map(_shown, value), transforms))

    def squared(lanes: tuple[int | None, ...] | None) -> Any:
        @jax.custom_jvp
        def square(x: Any, n: Any) -> Any:
            return x * x

        @square.defjvp
        def rule(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
            def tapped(tangent: Any, n: Any) -> Any:
                # Leaves without cotangents are before, between and after those with.
                tree = (n, WITHOUT_VALUE, tangent, n[..., :2], tangent)
                _, _, one, _, other = bench.implementation.tap(note, tree)
                return one + other

            x, n = primals
            tangent = (jax.vmap(tapped, lanes) if lanes else tapped)(tangents[0], n)
            return square(x, n), x * tangent

        return square

    two, three = jnp.arange(1.0, 3.0), jnp.arange(6).reshape(2, 3)
    for lanes in (None, (0, 0), (0, None)):
        square = squared(lanes)
        jax.block_until_ready(jax.jit(jax.grad(lambda x, f=square: f(x, three).sum()))(two))
        bench.implementation.barrier()
    cotangents = ("float32", [1.0, 2.0])
    # The integers have no cotangents; all lanes together have as many elements.
    leaves = (("float0", three.size), FLOAT0_OF_TWO, cotangents, ("float0", 4), cotangents)
    batch = ("batch", {"batch_dims": (0, 0)})
    wanted = [(leaves, (("transpose", {}),)), *[(leaves, (batch, ("transpose", {})))] * 2]
    if seen == wanted:
        return []
    return [Anomaly("wrong callback", Stage.CALLBACK, f"the tap was given and told {seen}, expected {wanted}")]


@planted("jit", "id_tap", "H1")
def mutable_arrays_of_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H1: of a mutable array, and of a part of it, each function gets the value at that point of the program."""
    seen: list[float] = []
    hostcb = library(bench)
    one = jax.ShapeDtypeStruct((), np.float32)

    def host(operand: Any, transforms: Any = None) -> Any:
        seen.append(float(np.asarray(operand).sum()))
        return np.float32(seen[-1])

    def tap(ref: Any) -> None:
        # It returns the mutable array itself, which no program may return.
        hostcb.id_tap(host, ref)

    functions: dict[str, Callable[[Any], Any]] = {
        "id_tap": tap,
        "call": lambda ref: hostcb.call(host, ref, result_shape=one),
        "pure_callback": lambda ref: hostcb.pure_callback(host, one, ref),
        "io_callback": lambda ref: hostcb.io_callback(host, one, ref),
        "debug.callback": lambda ref: hostcb.debug.callback(host, ref),
        "debug.print": lambda ref: hostcb.debug.print(format_for(host), x=ref),
        "an ordered debug.callback": lambda ref: hostcb.debug.callback(host, ref, ordered=True),
    }
    anomalies = []
    for name, function in functions.items():

        def program(ref: Any, function: Callable[[Any], Any] = function) -> Any:
            ref[...] += 1
            first = function(ref)
            ref[...] += 10
            return first, function(ref.at[1])

        jax.block_until_ready(jax.jit(program)(jax.new_ref(jnp.arange(2.0))))
        bench.implementation.barrier()
        # Unordered ones run in any order.
        if sorted(seen) != [3.0, 12.0]:
            witness = f"{name} saw the sums {seen}, expected 3 and 12"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
        seen.clear()
    return anomalies


@planted("jit", f"{EVERY_KIND} {WITH_SIDE_EFFECT}", "H1 H3 X2 X3 X4 B1 D1", functions="barrier_wait")
def arguments_without_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A `float0` leaf arrives in its place, as a `float0` array: before, between and after values, and alone."""
    hostcb = library(bench)
    like = jax.ShapeDtypeStruct((), np.float32)
    seen: list[Any] = []
    forms: tuple[tuple[Any, ...], ...] = (("x", 2), (2, "x"), (2, "x", 3), ("x", 2, "x"), (2,))

    def host(*leaves: Any) -> Any:
        seen.append([_shown(leaf) for leaf in leaves])
        return np.float32(1)

    def fill(context: Any, out: Any, *leaves: Any) -> None:
        np.asarray(out)[...] = host(*leaves)

    effect = {"has_side_effect": True} if "side_effect" in callback.name else {}
    ways: dict[str, Callable[..., Any]] = {
        "id_tap": lambda *leaves: (hostcb.id_tap(lambda given, _: host(*given), leaves), np.float32(1))[1],
        "call": lambda *leaves: hostcb.call(lambda given: host(*given), leaves, result_shape=like),
        "pure_callback": lambda *leaves: hostcb.pure_callback(host, like, *leaves),
        "io_callback": lambda *leaves: hostcb.io_callback(host, like, *leaves, ordered=callback.ordered),
        "debug.callback": lambda *leaves: (
            hostcb.debug.callback(host, *leaves, ordered=callback.ordered),
            np.float32(1),
        )[1],
        "buffer_callback": lambda *leaves: hostcb.buffer_callback(fill, like, **effect)(*leaves),
        "dlpack_callback": lambda *leaves: hostcb.dlpack_callback(host, like, **effect)(*leaves),
    }
    through = ways[callback.function]
    wanted = [[("float32", 5.0) if leaf == "x" else ("float0", leaf) for leaf in form] for form in forms]

    def program(x: Any) -> Any:
        return [through(*(x if leaf == "x" else np.zeros(leaf, jax.dtypes.float0) for leaf in form)) for form in forms]

    anomalies: list[Anomaly] = []
    for how, run in (("in jit", jax.jit(program)), ("outside jit", program)):
        seen.clear()
        try:
            jax.block_until_ready(run(jnp.float32(5)))
            bench.implementation.barrier()
        except Exception as error:
            error_of(bench.implementation.barrier)
            anomalies.append(Anomaly("error", stage_of(error), f"leaves without values {how}: {summary(error)}"))
            continue
        # Those without order run in any, and pure ones may run again.
        if any(each not in seen for each in wanted) or any(each not in wanted for each in seen):
            witness = f"{how}, the leaves, and of those without values the numbers of elements: {seen}, not {wanted}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies
