"""Fault cells of numbers of programs, devices' calls and functions around those at which hostcb takes another way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value
from .harness.registry import planted

ROUNDS = 3


def _one_more(operand: Any) -> Any:
    return np.asarray(operand) + np.float32(1)


def _of_two(bench: Bench) -> Bench:
    """Two devices show as much as eight, and take less time."""
    return Bench(bench.implementation, bench.layout, bench.devices[:2])


@planted("pmap", "id_tap call", "H5 H13", minimum_devices=2, crosses=("live_executions", "waiting_executions"))
def many_programs(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Programs that are started before earlier ones have ended: each gets its own operands and results, in order."""
    bench = _of_two(bench)
    seen: dict[int, list[float]] = {0: [], 1: []}
    lock = threading.Lock()

    def host(operand: Any) -> Any:
        # The second device's operands are larger.
        number = float(np.asarray(operand).ravel()[0])
        with lock:
            seen[int(number >= bench.operand[1][0] + _APART)].append(number)
        return _one_more(operand)

    compiled = bench.applying(callback, host)
    apart = np.array([[0], [_APART]], np.float32)
    anomalies: list[Anomaly] = []
    for count in sorted({*THRESHOLDS["waiting_executions"].around, *THRESHOLDS["live_executions"].around}):
        for numbers in seen.values():
            numbers.clear()
        operands = [bench.operand + apart + np.float32(number) for number in range(count)]
        results = [compiled(operand) for operand in operands]
        for operand, result in zip(operands, results, strict=True):
            wanted = bench.expected(callback, operand)
            anomalies += check_value(f"one of {count} programs", lambda r=result: r, wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {count} programs")
        if [seen[row] for row in (0, 1)] != [[float(operand[row][0]) for operand in operands] for row in (0, 1)]:
            anomalies.append(Anomaly("order", Stage.CALLBACK, f"of {count} programs some called out of order, or not"))
    return anomalies[:3]


_APART = 4096.0


@planted("pmap", "call pure_callback io_callback", "H9 X2 X3", minimum_devices=2, crosses=("least_turn", "most_turn"))
def quick_calls(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Loops on two devices that call in quick succession, so often that the devices take turns."""
    bench = _of_two(bench)

    def computation(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, carry: bench.apply(callback, _one_more, carry), x)

    compiled = jax.pmap(computation, in_axes=(0, None), devices=bench.devices)
    anomalies: list[Anomaly] = []
    for name in ("least_turn", "most_turn"):
        for count in THRESHOLDS[name].around:
            wanted = bench.operand + np.float32(count)
            # Devices take turns from the third execution on that calls as often as the one before.
            for _ in range(ROUNDS):
                anomalies += check_value(f"{count} calls", lambda c=count: compiled(bench.operand, c), wanted)  # type: ignore[misc]
    return anomalies[:3] + check_quiet_barrier(bench, "after calls in quick succession")


@planted("jit", "id_tap", "H1 H5", crosses=("numbered_targets",))
def many_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One program with more taps than there are targets for them; each tap has its own function."""
    seen: list[int] = []
    count = THRESHOLDS["numbered_targets"].value + 2

    def hosting(number: int) -> Callable[[Any], Any]:
        return lambda operand: seen.append(number if float(operand) == number else -1)

    wanted = np.arange(count, dtype=np.float32)
    # Operands of their own, and no computation between: XLA:CPU compiles that in a twentieth of the time.
    compiled = jax.jit(
        lambda *operands: [bench.apply(callback, hosting(int(x)), y) for x, y in zip(wanted, operands, strict=True)]
    )
    anomalies = check_value(f"{count} taps", lambda: np.stack(compiled(*wanted)), wanted)
    anomalies += check_value(f"{count} taps again", lambda: np.stack(compiled(*wanted)), wanted)
    anomalies += check_quiet_barrier(bench, f"after {count} taps")
    if seen != [*range(count)] * 2:
        wrong = next((place for place, number in enumerate(seen) if number != place % count), len(seen))
        anomalies.append(Anomaly("wrong function", Stage.CALLBACK, f"of {count} taps number {wrong % count} is wrong"))
    return anomalies


@planted("jit", "buffer_callback dlpack_callback", "H18", crosses=("eager_programs",))
def eager_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """More functions outside jit than programs are kept for: each gets its own result, also when it comes again."""

    def hosting(number: int) -> Callable[[Any], Any]:
        return lambda operand: np.asarray(operand) + np.float32(number)

    count = THRESHOLDS["eager_programs"].value + 1
    hosts = [hosting(number) for number in range(count)]
    x = jax.numpy.asarray(bench.operand)
    anomalies: list[Anomaly] = []
    # All but the last one fit; with it, the first ones are no longer kept.
    for number in (*range(count - 1), *range(count - 1), *range(count), *range(count)):
        wanted = bench.operand + np.float32(number)
        label = f"function {number} outside jit"
        anomalies += check_value(label, lambda h=hosts[number]: bench.apply(callback, h, x), wanted)  # type: ignore[misc]
    return anomalies[:3]


@planted("jit", "id_tap call io_callback", "H13", crosses=("generations",))
def generations(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback starts a program whose callback starts another, and so on; one barrier is for all of them."""
    most = max(THRESHOLDS["generations"].around)
    seen: list[int] = []

    def hosting(generation: int) -> Callable[[Any], Any]:
        def host(operand: Any) -> Any:
            seen.append(generation)
            if generation:
                np.asarray(programs[generation - 1](np.asarray(operand)))
            return _one_more(operand)

        return host

    # JAX refuses a program that starts itself.
    programs = [bench.applying(callback, hosting(generation)) for generation in range(most)]
    wanted = bench.expected(callback, bench.operand)
    anomalies: list[Anomaly] = []
    for depth in THRESHOLDS["generations"].around:
        seen.clear()
        label = f"{depth} generations"
        anomalies += check_value(label, lambda d=depth: programs[d - 1](bench.operand), wanted)  # type: ignore[misc]
        anomalies += check_quiet_barrier(bench, f"after {label}")
        if seen != [*reversed(range(depth))]:
            witness = f"of {label} these had called after the barrier: {seen}"
            anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    return anomalies
