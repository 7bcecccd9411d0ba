"""Fault cells of conditions of loops: with a mutable array, of which JAX gives the value from before, and in lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench, Function
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

STEPS = 2


@planted("jit", "id_tap call", "H4")
def conditions_of_mutable_arrays(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback that would see an old value is refused, also in a branch; others, and a loop without any, run."""
    seen: list[list[float]] = []

    def note(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())
        return np.asarray(operand)

    def call(value: Any) -> Any:
        return bench.apply(callback, note, value)

    def call_in_branch(value: Any) -> Any:
        # JAX keeps the branch of a true predicate behind the other one.
        return jax.lax.cond(value[1] > 0, call, lambda value: value, value)

    def program(x: Any, changes: bool, calls: Function | None, reads: bool) -> Any:
        used, other = jax.new_ref(x), jax.new_ref(x)

        def condition(step: Any) -> Any:
            value = calls(used[...]) if calls else used[...]
            return (step < STEPS) & (value[0] < 100)

        def body(step: Any) -> Any:
            (used if changes else other)[...] += 1
            return step + 1 + (jnp.int32(used[...][0]) if reads else 0)

        jax.lax.while_loop(condition, body, 0)
        return used[...] + other[...]

    def run(changes: bool, calls: Function | None, reads: bool) -> Any:
        seen.clear()
        result = jax.jit(lambda x: program(x, changes, calls, reads))(jnp.arange(2.0))
        bench.implementation.barrier()
        return np.asarray(result).tolist(), list(seen)

    anomalies = []
    unchanged = [[0.0, 1.0]] * (STEPS + 1)
    for what, changes, calls, reads, values in (
        ("a loop without callbacks", True, None, False, []),
        ("a loop that changes another array", False, call, False, unchanged),
        ("a loop that changes another array and reads it", False, call, True, unchanged),
    ):
        try:
            found = run(changes, calls, reads)
        except Exception as error:
            anomalies.append(Anomaly("wrong refusal", Stage.TRACE, f"{what} was refused: {summary(error)}"))
            continue
        if found != ([2.0, 4.0], values):
            witness = f"{what} gave {found[0]} and showed {found[1]}, expected [2.0, 4.0] and {values}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    for what, calls in (("a condition", call), ("a branch in a condition", call_in_branch)):
        try:
            found = run(True, calls, False)
            witness = f"a callback in {what} that uses what the body changes was not refused: it showed {found[1]}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
        except NotImplementedError as error:
            if "Carry the array's value" not in str(error):
                witness = f"the refusal of {what} names no remedy: {summary(error)}"
                anomalies.append(Anomaly("poor error", Stage.TRACE, witness))
    return anomalies + check_quiet_barrier(bench, "after loops with mutable arrays")


def _set(ref: Any) -> None:
    ref[...] = ref[...] * 2


def _set_a_part(ref: Any) -> None:
    ref[1] = jnp.float32(7)


def _add(ref: Any) -> None:
    jax.ref.addupdate(ref, ..., jnp.ones(2))


def _add_to_a_part(ref: Any) -> None:
    jax.ref.addupdate(ref, 0, jnp.float32(1))


def _swap(ref: Any) -> None:
    jax.ref.swap(ref, ..., jnp.ones(2))


def _in_jit(ref: Any) -> None:
    jax.jit(_set)(ref)


def _in_scan(ref: Any) -> None:
    def body(carry: Any, _: Any) -> Any:
        _add(ref)
        return carry, None

    jax.lax.scan(body, 0, None, length=2)


def _in_branch(ref: Any) -> None:
    jax.lax.cond(ref[0] > 1, lambda: _set(ref), lambda: None)


CHANGES: dict[str, Callable[[Any], None]] = {
    "sets it": _set,
    "sets a part of it": _set_a_part,
    "adds to it": _add,
    "adds to a part of it": _add_to_a_part,
    "swaps it": _swap,
    "sets it in a jitted function": _in_jit,
    "adds to it in a scan": _in_scan,
    "sets it in a branch": _in_branch,
}


@planted("jit", "id_tap call pure_callback io_callback debug_callback", "H3 H4 X2 X3 X4", functions="barrier_wait")
def conditions_however_changed(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback of any kind in a condition is refused in whichever way the body changes what the condition uses."""
    seen: list[Any] = []

    def note(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())
        return np.asarray(operand)

    def program(x: Any, change: Callable[[Any], None] | None) -> Any:
        used = jax.new_ref(x)

        def condition(step: Any) -> Any:
            return (step < STEPS) & (bench.apply(callback, note, used[...])[0] < 100)

        def body(step: Any) -> Any:
            if change is not None:
                change(used)
            return step + 1 + jnp.int32(used[0] * 0)

        # Without its result, a loop of a pure callback need not run.
        return used[...] + jax.lax.while_loop(condition, body, 0)

    anomalies: list[Anomaly] = []
    for what, change in CHANGES.items():
        error = error_of(lambda change=change: jax.jit(lambda x: program(x, change))(jnp.arange(2.0)))  # type: ignore[misc]
        if not isinstance(error, NotImplementedError) or "Carry the array's value" not in str(error):
            came = f"{seen} was shown" if error is None else summary(error)
            witness = f"where the body {what}, a callback in the condition must be refused; {came}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
        seen.clear()
        error_of(bench.implementation.barrier)
    label = "a loop that only reads"
    wanted = np.arange(2, dtype=np.float32) + STEPS
    anomalies += check_value(label, lambda: jax.jit(lambda x: program(x, None))(jnp.arange(2.0)), wanted)
    anomalies += check_quiet_barrier(bench, f"after {label}")
    if {*map(tuple, seen)} != {(0.0, 1.0)}:
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"in {label} the condition showed {seen}"))
    return anomalies


@planted("jit", "debug_callback", "X4", functions="barrier_wait")
def condition_of_lanes_that_differ(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A debug callback in the condition of a while_loop whose lanes end at different steps: it runs, and all end."""
    seen: list[int] = []

    def lane(count: Any) -> Any:
        def condition(carry: Any) -> Any:
            library(bench).debug.callback(lambda step: seen.append(int(step)), carry[0])
            return carry[0] < count

        return jax.lax.while_loop(condition, lambda carry: (carry[0] + 1, carry[1] * 2), (0, np.float32(1)))

    counts = np.array([1, 3], np.int32)
    steps, powers = jax.jit(jax.vmap(lane))(counts)
    anomalies = check_quiet_barrier(bench, "after lanes that end at different steps")
    found = np.asarray(steps).tolist(), np.asarray(powers).tolist()
    if found != ([1, 3], [2.0, 8.0]):
        anomalies.append(Anomaly("result", Stage.RESULT, f"the lanes ended with {found}"))
    if {*range(4)} - {*seen}:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"the condition of steps 0 to 3 called back for {seen}"))
    return anomalies
