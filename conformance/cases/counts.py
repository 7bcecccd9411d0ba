"""Fault cells of numbers of callbacks, lanes, steps and programs around those at which hostcb takes another way.

`spec.thresholds` has these numbers. Each cell goes through a number below, at and above each.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import EVERY_KIND, planted

LANES = "call_sequential call_sequential_unrolled pure_callback_sequential pure_callback_sequential_unrolled"
BY_LANE = f"{LANES} io_callback debug_callback debug_callback_ordered buffer_callback_side_effect"
ROUNDS = 2


def _one_more(operand: Any) -> Any:
    return np.asarray(operand) + np.float32(1)


@planted("jit", BY_LANE, "H7 H8 X2 X3 X4 B4", crosses=("unrolled_lanes",))
def lanes(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Under vmap, each lane calls with its own operand and gets its own result."""
    anomalies = []
    for count in THRESHOLDS["unrolled_lanes"].around:
        seen: list[float] = []

        def host(operand: Any, seen: list[float] = seen) -> Any:
            seen.append(float(np.asarray(operand)))
            return _one_more(operand)

        operand = np.arange(count, dtype=np.float32)
        program = jax.jit(jax.vmap(lambda x, host=host: bench.apply(callback, host, x)))
        wanted = bench.expected(callback, operand)
        anomalies += check_value(f"{count} lanes", lambda p=program, x=operand: p(x), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {count} lanes")
        if sorted(seen) != operand.tolist() or (callback.ordered and seen != operand.tolist()):
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"of {count} lanes it saw {seen}"))
    return anomalies


@planted("jit", EVERY_KIND, "H3 H5 X2 X3 X4 B1 D1", crosses=("fast_operations", "fast_bytes"))
def fast_dispatch(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Programs of several callbacks in a row, and of one on more elements with other operations around it."""
    anomalies = []
    for count in THRESHOLDS["fast_operations"].around:
        seen: list[float] = []

        def host(operand: Any, seen: list[float] = seen) -> Any:
            seen.append(float(np.asarray(operand)))
            return _one_more(operand)

        def chain(x: Any, host: Any = host, count: int = count) -> Any:
            for _ in range(count):
                x = bench.apply(callback, host, x) + (0 if callback.returns_new_value else 1)
            return x

        program = jax.jit(chain)
        for start in range(ROUNDS + 1):
            wanted = np.float32(start + count)
            label = f"{count} callbacks in a row"
            anomalies += check_value(label, lambda p=program, s=start: p(np.float32(s)), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after programs of {count} callbacks")
        every = [float(start + number) for start in range(ROUNDS + 1) for number in range(count)]
        if sorted(seen) != sorted(every) or (callback.ordered and seen != every):
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"{count} callbacks in a row saw {seen}"))
    # The compiler's instructions are counted at 16 bytes an element.
    elements = THRESHOLDS["fast_bytes"].value // 16
    for count in (elements - 1, elements, elements + 1):
        program = jax.jit(lambda x: jnp.flip(bench.apply(callback, _one_more, jnp.flip(x) * 2)))
        for start in range(ROUNDS + 1):
            operand = np.arange(count, dtype=np.float32) + np.float32(start)
            wanted = bench.expected(callback, operand * 2)
            label = f"a callback on {count} elements"
            anomalies += check_value(label, lambda p=program, x=operand: p(x), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after programs of several operations")


@planted("jit", "call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3", crosses=("fast_steps",))
def loop_steps(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Loops with a number of steps that the compiler knows."""
    anomalies = []
    for count in THRESHOLDS["fast_steps"].around:
        program = jax.jit(
            lambda x, count=count: jax.lax.fori_loop(
                0, count, lambda _, carry: bench.apply(callback, _one_more, carry), x
            )
        )
        for start in range(ROUNDS):
            wanted = np.float32(start + count)
            label = f"{count} steps"
            anomalies += check_value(label, lambda p=program, s=start: p(np.float32(s)), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after loops")


@planted("jit", "id_tap", "H5 H11 H12", crosses=("read_ahead", "ring"))
@planted("jit", "debug_callback_ordered", "X4", crosses=("read_ahead",))
def many_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """More values than a ring gives at once, and more bytes than it has."""
    return _check_many(bench, callback, 1, 2 * THRESHOLDS["read_ahead"].value + 1) + (
        _check_many(bench, callback, 1 << 14, THRESHOLDS["ring"].value // (1 << 16) + 44)
        if callback.function == "id_tap"
        else []
    )


def _check_many(bench: Bench, callback: Callback, elements: int, most: int) -> list[Anomaly]:
    gate = threading.Event()
    seen: list[tuple[float, bool]] = []

    def host(operand: Any) -> Any:
        array = np.asarray(operand)
        if not seen and callback.function == "id_tap":
            # Until then the values are kept for the consumer; a full ring lets the device run them itself.
            gate.wait(0.2)
        seen.append((float(array[0]), bool((array == array[0]).all())))

    def computation(x: Any, count: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            return bench.apply(callback, host, carry) + 1

        return jax.lax.fori_loop(0, count, step, x)

    compiled = jax.jit(computation)
    anomalies: list[Anomaly] = []
    counts = (most // 2 - 1, most // 2, most // 2 + 1, most)
    for count in counts:
        seen.clear()
        wanted = np.full(elements, count, np.float32)
        operand = np.zeros(elements, np.float32)
        anomalies += check_value(f"{count} values", lambda c=count, x=operand: compiled(x, c), wanted)  # type: ignore[misc]
        gate.set()
        anomalies += check_quiet_barrier(bench, f"after {count} values")
        if seen != [(float(number), True) for number in range(count)]:
            witness = f"of {count} values of {4 * elements} bytes in order {len(seen)} came, {seen[:5]} first"
            anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies


@planted("jit", "id_print", "H2", crosses=("printed_elements",))
def printed_elements(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An array up to the threshold is written in full, and a longer one with dots."""
    anomalies = []
    for count in THRESHOLDS["printed_elements"].around:
        texts: list[str] = []
        stream = _Texts(texts)
        program = jax.jit(lambda x, s=stream: bench.implementation.print_labelled(x, output_stream=s))
        operand = np.arange(count, dtype=np.int32)
        anomalies += check_value(f"{count} elements", lambda p=program, x=operand: p(x), operand)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after a print of {count} elements")
        whole = count <= THRESHOLDS["printed_elements"].value
        words = " ".join(texts).replace("[", " ").replace("]", " ").split()
        if (words == [str(number) for number in range(count)]) != whole or ("..." in words) == whole:
            witness = f"{count} elements were printed as {words[:5]} to {words[-5:]}, {len(words)} words"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


class _Texts:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)
